"""explain: what a call takes along, how big that is, and what of it cannot travel."""

from __future__ import annotations

import html
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from nb_accelerate.payload.attempt import Failed, attempt
from nb_accelerate.payload.calls import complaint
from nb_accelerate.payload.captures import WRAPPERS, Part, call_parts, parts_of, type_name
from nb_accelerate.payload.names import importable, travels_by_name
from nb_accelerate.payload.pickling import pickled
from nb_accelerate.payload.sources import label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["ClosureReport", "ClosureRow", "explain"]

COLUMNS = ("name", "where", "type", "size", "travels", "made at")


@dataclass(frozen=True, slots=True)
class ClosureRow:
    """One thing that a call takes along."""

    name: str
    where: str
    """Such as "closure variable `lock` of `train`"."""
    type: str
    num_bytes: int
    """Of this alone, with all that it refers to; 0 when it cannot travel."""
    travels: bool
    why: str
    """"by value", "by name, from MODULE", or why it cannot travel and what to do."""
    made_at: str
    """File name (or cell) and line of a function or class that travels by value, else ""."""


@dataclass(frozen=True, slots=True, repr=False)
class ClosureReport:
    """What a call takes along. Print it, or let the notebook show it."""

    rows: tuple[ClosureRow, ...]
    total_bytes: int
    """Of the whole call, where shared parts count once; if that fails, of the rows that travel."""

    def __repr__(self) -> str:
        lines = [COLUMNS, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*table, f"total: {_size(self.total_bytes)}"])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{column}</th>" for column in COLUMNS)
        lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(r)) for r in self.rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        total = f"<p>total: {_size(self.total_bytes)}</p>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{total}"


def explain(
    function: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
) -> ClosureReport:
    """Tell what a launch of `function(*args, **kwargs)` would send, without sending it."""
    call = (function, tuple(args), dict(kwargs or {}))
    rows = tuple(_row(part) for part in _captured(call_parts(*call)))
    whole = attempt(lambda: pickled(call))
    if isinstance(whole, Failed):
        return ClosureReport(rows, sum(row.num_bytes for row in rows))
    return ClosureReport(rows, whole.num_bytes)


def _captured(parts: list[Part]) -> Iterator[Part]:
    """These parts, then what the functions and classes among them capture, each value once.

    A class's methods and attributes are part of it; what its methods use are captures.
    """
    seen: set[int] = set()
    while parts:
        part, *parts = parts
        if id(part.value) in seen:
            continue
        seen.add(id(part.value))
        if not part.where.startswith("attribute"):
            yield part
        if isinstance(part.value, (FunctionType, type, *WRAPPERS)):
            parts += parts_of(part)


def _row(part: Part) -> ClosureRow:
    value, content = part.value, attempt(lambda: pickled(part.value))
    num_bytes, why = 0, ""
    if isinstance(content, Failed):
        why = complaint(part)
    else:
        num_bytes, why = content.num_bytes, _how(value)
    names = (part.path, part.where, type_name(value))
    return ClosureRow(*names, num_bytes, not isinstance(content, Failed), why, _made_at(value))


def _how(value: object) -> str:
    if isinstance(value, (FunctionType, type)) and travels_by_name(value):
        return f"by name, from {value.__module__}"
    if isinstance(value, ModuleType) and importable(value.__name__):
        return "by name"
    return "by value"


def _made_at(value: object) -> str:
    if not isinstance(value, (FunctionType, type)) or travels_by_name(value):
        return ""
    methods = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    codes = [method.__code__ for method in methods if isinstance(method, FunctionType)]
    if not codes:
        return ""
    first = min(codes, key=lambda code: code.co_firstlineno)
    return f"{label_of(first.co_filename)}:{first.co_firstlineno}"


def _cells(row: ClosureRow) -> tuple[str, ...]:
    size = _size(row.num_bytes) if row.travels else ""
    travels = row.why if row.travels else f"NO: {row.why}"
    return (row.name, row.where, row.type, size, travels, row.made_at)


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"
