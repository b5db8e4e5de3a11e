"""What the ranks logged, as a table."""

from __future__ import annotations

import html
import importlib
import math
from array import array
from typing import TYPE_CHECKING, Any

from nb_accelerate.record.formats import format_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["MetricTable"]

SHOWN_ROWS = 20
"""A table with more rows shows its first and last five."""


class _Series:
    """One metric of one rank: 16 bytes a value."""

    __slots__ = ("newest", "steps", "values")

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")
        self.newest: tuple[int, float] | None = None

    def put(self, step: int, value: float) -> None:
        if self.steps and self.steps[-1] == step:
            self.values[-1] = value
        else:
            # A reader in another thread zips the two, so a step without its value is not seen.
            self.steps.append(step)
            self.values.append(value)
        if self.newest is None or step >= self.newest[0]:
            self.newest = (step, value)

    def by_step(self) -> dict[int, float]:
        return dict(zip(self.steps, self.values, strict=False))


class MetricTable:
    """What the ranks logged: a row per step, a column per name, a value per rank in each cell.

    Iterating gives the rows as dictionaries: "step" and the mean over the ranks of each metric
    that was logged at that step. A metric logged twice at a step by one rank keeps the later value.
    """

    def __init__(self) -> None:
        self._columns: dict[str, dict[int, _Series]] = {}

    def add(self, rank: int, step: int, values: Mapping[str, float]) -> None:
        """Note what `rank` logged at `step`."""
        for name, value in values.items():
            column = self._columns.setdefault(name, {})
            if rank not in column:
                column[rank] = _Series()
            column[rank].put(int(step), float(value))

    # list() of a dict is one step of the interpreter: the folding thread cannot add in between.
    @property
    def names(self) -> tuple[str, ...]:
        """The metrics, in the order in which they first came."""
        return tuple(self._columns)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that logged anything."""
        return tuple(sorted({rank for column in list(self._columns.values()) for rank in column}))

    def steps(self, name: str | None = None) -> list[int]:
        """The steps at which `name` (any metric when None) was logged, in order."""
        columns = [self._column(name)] if name is not None else list(self._columns.values())
        series = [each for column in columns for each in list(column.values())]
        return sorted(set().union(*(each.steps for each in series)))

    def mean(self, name: str) -> list[float]:
        """The mean over the ranks that logged it, at each of `steps(name)`."""
        return [_mean(values) for values in self._cells(name).values()]

    def min(self, name: str) -> list[float]:
        """The least over the ranks, at each of `steps(name)`."""
        return [_extreme(min, values) for values in self._cells(name).values()]

    def max(self, name: str) -> list[float]:
        """The greatest over the ranks, at each of `steps(name)`."""
        return [_extreme(max, values) for values in self._cells(name).values()]

    def by_rank(self, name: str) -> dict[int, list[float]]:
        """Each rank's values at `steps(name)`; nan where a rank did not log it."""
        steps = self.steps(name)
        column = sorted(list(self._column(name).items()))  # noqa: C414 - one step, see above
        at = {rank: series.by_step() for rank, series in column}
        return {rank: [values.get(step, math.nan) for step in steps] for rank, values in at.items()}

    def last(self, name: str) -> float:
        """The mean over the ranks that logged it, at the newest of `steps(name)`."""
        newest = self.newest(name)
        step = max(step for step, _ in newest.values())
        return _mean([value for at, value in newest.values() if at == step])

    def newest(self, name: str) -> dict[int, tuple[int, float]]:
        """Each rank's (step, value) at the newest step that it logged `name` at."""
        column = list(self._column(name).items())
        return {rank: series.newest for rank, series in column if series.newest is not None}

    def to_pandas(self, *, by_rank: bool = False) -> Any:  # noqa: ANN401 - pandas may be absent
        """A pandas DataFrame indexed by step.

        A column per metric with the mean over the ranks, or with `by_rank` a column per
        (metric, rank).

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            message = (
                "MetricTable.to_pandas() needs pandas, which is not installed: pip install pandas."
            )
            raise ImportError(message) from error
        columns: dict[object, object] = {}
        for name in self.names:
            lines = self.by_rank(name) if by_rank else {0: self.mean(name)}
            for rank, values in lines.items():
                key = (name, rank) if by_rank else name
                columns[key] = pandas.Series(values, index=self.steps(name), dtype=float)
        frame = pandas.DataFrame(columns, index=self.steps())
        return frame.rename_axis(index="step")

    def __iter__(self) -> Iterator[dict[str, float]]:
        cells = {name: self._cells(name) for name in self.names}
        for step in self.steps():
            row: dict[str, float] = {"step": step}
            row |= {name: _mean(at[step]) for name, at in cells.items() if step in at}
            yield row

    def __len__(self) -> int:
        return len(self.steps())

    def __repr__(self) -> str:
        if not self._columns:
            return "no metrics were logged"
        rows = [["step", *self.names], *self._shown(_number_or_blank)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, self._size()])

    def _repr_html_(self) -> str:
        if not self._columns:
            return "<em>no metrics were logged</em>"
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("step", *self.names))
        body = "".join(
            f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
            for row in self._shown(_band_in_html)
        )
        size = f"<caption>{html.escape(self._size())}</caption>"
        return f"<table>{size}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _size(self) -> str:
        ranks = len(self.ranks)
        over = f", mean over {ranks} ranks" if ranks > 1 else ""
        return f"{len(self)} steps × {len(self.names)} metrics{over}"

    def _shown(self, cell: Callable[[Sequence[float]], str]) -> list[list[str]]:
        steps = self.steps()
        cells = [self._cells(name) for name in self.names]
        rows = steps if len(steps) <= SHOWN_ROWS else [*steps[:5], None, *steps[-5:]]
        return [
            ["…"] * (len(cells) + 1)
            if step is None
            else [str(step), *(cell(at.get(step, [])) for at in cells)]
            for step in rows
        ]

    def _column(self, name: str) -> dict[int, _Series]:
        if name not in self._columns:
            there = ", ".join(map(repr, self.names)) or "none at all"
            raise KeyError(f"no metric {name!r} was logged; what was logged: {there}.")
        return self._columns[name]

    def _cells(self, name: str) -> dict[int, list[float]]:
        """The ranks' values at each step, by step."""
        cells: dict[int, list[float]] = {}
        for series in list(self._column(name).values()):
            for step, value in series.by_step().items():
                cells.setdefault(step, []).append(value)
        return dict(sorted(cells.items()))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _extreme(choose: Any, values: Sequence[float]) -> float:  # noqa: ANN401 - min or max
    return math.nan if any(map(math.isnan, values)) else float(choose(values))


def _number_or_blank(values: Sequence[float]) -> str:
    return format_number(_mean(values)) if values else ""


def _band_in_html(values: Sequence[float]) -> str:
    text = _number_or_blank(values)
    low, high = (format_number(_extreme(f, values)) if values else "" for f in (min, max))
    return text if low == high else f"{text} <small>({low} – {high})</small>"
