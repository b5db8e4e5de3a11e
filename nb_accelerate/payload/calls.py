"""Calls and return values: packed, or refused with the name of what cannot travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nb_accelerate.errors import PayloadError
from nb_accelerate.payload.attempt import Failed, attempt
from nb_accelerate.payload.captures import Part, call_parts, culprit_of, failure_of, type_name
from nb_accelerate.payload.parcel import sealed
from nb_accelerate.payload.pickling import pickled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nb_accelerate.payload.parcel import Packed

__all__ = ["complaint", "pack_call", "pack_value"]

CURES = (
    (
        ("generator", "async_generator", "coroutine", "iterator"),
        "Pass what it is made from, and make it inside the function.",
    ),
    (
        ("_io.",),
        "Pass its path, and open it inside the function.",
    ),
    (
        (
            "_thread.",
            "threading.",
            "multiprocessing.",
            "queue.",
            "_queue.",
            "asyncio.",
            "concurrent.",
        ),
        "Make it inside the function: in another process it would be another one anyway.",
    ),
    (
        ("socket.", "ssl.", "sqlite3.", "http.", "urllib3.", "psycopg"),
        "Pass its address, and connect inside the function.",
    ),
)
ANY_CURE = "Make it inside the function, or pass what it is made from."


def pack_call(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    beside: Sequence[object] = (),
) -> Packed:
    """Pack `(function, args, kwargs, beside)` for workers.

    What is `beside` the call keeps its identity with what the call captures.

    Raises:
        PayloadError: something captured or passed cannot travel; the message names it.
    """
    call = (function, tuple(args), dict(kwargs), tuple(beside))
    content = attempt(lambda: pickled(call))
    if not isinstance(content, Failed):
        return sealed(content)
    parts = call_parts(*call)
    failing = next((part for part in parts if failure_of(part.value) is not None), None)
    name = parts[0].path
    if failing is None:  # each part alone is fine, together they are not
        raise PayloadError(f"`{name}` cannot be sent to the workers: {content.error}.")
    raise PayloadError(
        f"`{name}` cannot be sent to the workers: {complaint(failing)} "
        "Only start_method='fork' sends what cannot be pickled."
    ) from content.error


def pack_value(value: object, beside: Sequence[object] | None = None) -> Packed:
    """Pack what a worker's function has returned, for the kernel. Tensors go through the CPU.

    With `beside`, the parcel holds `(value, beside)`; a refusal speaks of the value alone.

    Raises:
        PayloadError: a part of the value cannot travel; the message names it.
    """
    whole = value if beside is None else (value, beside)
    content = attempt(lambda: pickled(whole, redefine_classes=False))
    if not isinstance(content, Failed):
        return sealed(content)
    culprit = culprit_of(Part(value, "", ""))
    owner = f"The returned value's {culprit.path}" if culprit.path else "The returned value"
    raise PayloadError(
        f"{owner} is a {type_name(culprit.value)}, which cannot travel back to the notebook"
        f" ({content.error}). Return what it holds instead, such as numbers, tensors or a"
        " state_dict()."
    ) from content.error


def complaint(part: Part) -> str:
    """A sentence on why this part cannot travel, and one on what to do."""
    culprit = culprit_of(part)
    place = culprit.where
    if f"`{culprit.path}`" not in place:
        place = f"`{culprit.path}`, in {place},"
    kind = type_name(culprit.value)
    reason = str(failure_of(culprit.value)).splitlines()[:1]
    cure = next((cure for names, cure in CURES if _is_one_of(kind, names)), ANY_CURE)
    return f"{place} is a {kind} ({' '.join(reason)}). {cure}"


def _is_one_of(kind: str, names: tuple[str, ...]) -> bool:
    return any(kind.startswith(name) or kind.endswith(f"_{name}") for name in names)
