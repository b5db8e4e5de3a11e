"""Tracebacks across processes: written down by place, and raised again at those places.

Not tblib: what its frames run would be underlined in the user's lines, and IPython's source
finder loops for ever on frames without an instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Place", "rebuilt", "written"]

OUTER_FRAMES = 50
INNER_FRAMES = 100
"""How much of a traceback travels: enough to read, and no endless recursion's thousands."""


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of a traceback."""

    filename: str
    function: str
    first_line: int
    """Where the function begins."""
    line: int


def written(traceback: TracebackType | None) -> tuple[Place, ...]:
    """A traceback from the user's first frame on, without the middle of an endless recursion."""
    places, ours = [], []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.append(
            Place(code.co_filename, code.co_name, code.co_firstlineno, traceback.tb_lineno)
        )
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        ours.append(module.startswith("nb_accelerate."))
        traceback = traceback.tb_next
    start = ours.index(False) if False in ours else 0
    places = places[start:]
    if len(places) > OUTER_FRAMES + INNER_FRAMES:
        places = [*places[:OUTER_FRAMES], *places[-INNER_FRAMES:]]
    return tuple(places)


def rebuilt(places: Sequence[Place]) -> TracebackType | None:
    """A traceback of frames that stand at the places but run nothing of what is there."""
    again: TracebackType | None = None
    for place in reversed(places):
        alone = _raised_at(place)
        again = TracebackType(again, alone.tb_frame, alone.tb_lasti, alone.tb_lineno)
    return again


_STUB = compile("raise StopIteration", "", "exec")


def _raised_at(place: Place) -> TracebackType:
    """A traceback of one entry, which has a line and no columns."""
    code = _STUB.replace(
        co_filename=place.filename,
        co_name=place.function,
        co_qualname=place.function,
        co_firstlineno=place.first_line,
        co_linetable=_all_on_line(place.line - place.first_line, len(_STUB.co_code) // 2),
    )
    traceback: TracebackType | None = None
    try:
        exec(code, {"StopIteration": StopIteration})  # noqa: S102 - the constant above
    except StopIteration as raised:
        traceback = raised.__traceback__
    # It was raised, in a frame of its own.
    assert traceback is not None  # noqa: S101
    assert traceback.tb_next is not None  # noqa: S101
    return traceback.tb_next


def _all_on_line(delta: int, units: int) -> bytes:
    """A location table in which all `units` of code stand `delta` lines below the first.

    CPython's InternalDocs/code_objects.md: an entry covers up to 8 units and begins with a byte
    that holds its kind (13: a line and no columns) and length; the line's change follows.
    """
    table = b""
    while units > 0:
        covered = min(units, 8)
        table += bytes([0x80 | 13 << 3 | covered - 1]) + _signed_varint(delta)
        units, delta = units - covered, 0
    return table


def _signed_varint(value: int) -> bytes:
    """6 bits a byte, lowest first, bit 6 set while more follow; the sign is the lowest bit."""
    rest = value << 1 if value >= 0 else (-value << 1) | 1
    out = b""
    while rest >= 64:
        out += bytes([0x40 | rest & 63])
        rest >>= 6
    return out + bytes([rest])
