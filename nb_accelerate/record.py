"""What is known of a run: its messages, folded. No IO, no threads, no clock.

One thread folds; any other may read at the same time and sees a state between two messages.
"""

from __future__ import annotations

import html
import importlib
import math
import re
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, assert_never, overload

from nb_accelerate.messages import (
    Interrupted,
    Left,
    Metrics,
    Notice,
    Output,
    Progress,
    Raised,
    RankEnded,
    Ready,
    Returned,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nb_accelerate.messages import RunMessage, Stream

__all__ = [
    "Log",
    "LogLine",
    "MetricTable",
    "RunRecord",
    "Status",
    "format_number",
    "plain",
    "rank_tag",
    "status_after",
]

Status: TypeAlias = Literal["starting", "running", "returned", "raised", "left", "died"]
"""What a rank is doing, or how it ended."""

LOG_LINES = 20_000
LOG_CHARACTERS = 8_000_000
LINE_CHARACTERS = 64 * 1024
"""A line that is longer is kept as several."""
PROGRESS_LOOPS = 2_000
NOTICES = 1_000
SHOWN_ROWS = 20
"""A table with more rows shows its first and last five."""
SHOWN_LINES = 500
"""Of each rank's log, in HTML."""
REPR_LINES = 50

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\].*?(?:\x07|\x1b\\)"  # hyperlinks, window titles
    r"|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]"
)


def plain(text: str) -> str:
    """`text` without terminal colours, cursor movements and other control characters."""
    return _CONTROL.sub("", text)


def format_number(value: float) -> str:
    """Four significant digits; whole numbers whole."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def rank_tag(ranks: Sequence[int]) -> str:
    """What marks the lines of these ranks, such as "[rank 0]" or "[ranks 0-3,6]"."""
    ordered = sorted(ranks)
    firsts = [rank for rank in ordered if rank - 1 not in ordered]
    lasts = [rank for rank in ordered if rank + 1 not in ordered]
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True)]
    return f"[rank{'' if len(ordered) == 1 else 's'} {','.join(spans)}]"


# ---------------------------------------------------------------- metrics
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


# ---------------------------------------------------------------- log
class LogLine(NamedTuple):
    """One line that a rank wrote."""

    rank: int
    stream: Stream
    text: str


@dataclass(slots=True)
class _Entry:
    """A line that may still grow."""

    rank: int
    stream: Stream
    text: str


class Log(Sequence[LogLine]):
    """The newest lines that the ranks wrote; all of them are in the run folder's log.txt.

    Attributes:
        dropped: how many older lines are no longer held here.
    """

    def __init__(
        self, *, max_lines: int = LOG_LINES, max_characters: int = LOG_CHARACTERS, dropped: int = 0
    ) -> None:
        self.dropped = dropped
        self._max_lines = max_lines
        self._max_characters = max_characters
        self._characters = 0
        self._entries: deque[_Entry] = deque()
        self._open: dict[tuple[int, Stream], _Entry] = {}

    def add(self, output: Output) -> None:
        """Take a piece of output; of bars only the line that stays is kept."""
        entry = self._open.pop((output.rank, output.stream), None)
        if output.ending == "\r":
            return
        if entry is None or len(entry.text) >= LINE_CHARACTERS:
            entry = _Entry(output.rank, output.stream, "")
            self._entries.append(entry)
        entry.text += output.text
        self._characters += len(output.text)
        if not output.ending:
            self._open[(entry.rank, entry.stream)] = entry
        while len(self._entries) > self._max_lines or self._characters > self._max_characters:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        entry = self._entries.popleft()
        self._characters -= len(entry.text)
        self.dropped += 1
        if self._open.get((entry.rank, entry.stream)) is entry:
            del self._open[(entry.rank, entry.stream)]

    def text(self, rank: int | None = None) -> str:
        """What `rank` wrote; the lines of all ranks, each with its rank, when None."""
        if rank is not None:
            return "".join(f"{line.text}\n" for line in self if line.rank == rank)
        return "".join(f"{_tagged(line)}\n" for line in self)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote anything."""
        return tuple(sorted({line.rank for line in self}))

    def __len__(self) -> int:
        return len(self._entries)

    # list() of a deque is one step of the interpreter: the folding thread cannot add in between.
    def __iter__(self) -> Iterator[LogLine]:
        return (LogLine(each.rank, each.stream, each.text) for each in list(self._entries))

    @overload
    def __getitem__(self, index: int) -> LogLine: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogLine]: ...
    def __getitem__(self, index: int | slice) -> LogLine | list[LogLine]:
        if isinstance(index, slice):
            return list(self)[index]
        entry = self._entries[index]
        return LogLine(entry.rank, entry.stream, entry.text)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        earlier = self.dropped + max(0, len(self) - REPR_LINES)
        head = [f"… {earlier} earlier lines"] if earlier else []
        return "\n".join([*head, *map(_tagged, self[-REPR_LINES:])]) or "nothing was printed"

    def _repr_html_(self) -> str:
        by_rank: dict[int, list[LogLine]] = {rank: [] for rank in self.ranks}
        for line in self:
            by_rank[line.rank].append(line)
        parts = [_rank_in_html(rank, lines) for rank, lines in by_rank.items()]
        return "".join(parts) or "<em>nothing was printed</em>"


def _tagged(line: LogLine) -> str:
    stderr = " stderr" if line.stream == "stderr" else ""
    return f"[rank {line.rank}{stderr}] {line.text}"


def _rank_in_html(rank: int, lines: Sequence[LogLine]) -> str:
    shown = "".join(map(_line_in_html, lines[-SHOWN_LINES:]))
    earlier = len(lines) - SHOWN_LINES
    note = f"<em>… {earlier} earlier lines</em>\n" if earlier > 0 else ""
    opened = " open" if rank == 0 else ""
    title = f"<summary>rank {rank} · {len(lines)} lines</summary>"
    style = "max-height: 24em; overflow: auto; margin: 0"
    return f'<details{opened}>{title}<pre style="{style}">{note}{shown}</pre></details>'


def _line_in_html(line: LogLine) -> str:
    text = html.escape(plain(line.text))
    if line.stream == "stderr":
        text = f'<span style="color: var(--jp-error-color1, #c62828)">{text}</span>'
    return f"{text}\n"


# ---------------------------------------------------------------- run
Move: TypeAlias = Ready | Returned | Raised | Left | RankEnded
"""The messages that tell what becomes of a rank."""

_AFTER: dict[type[Move], Status] = {
    Ready: "running",
    Returned: "returned",
    Raised: "raised",
    Left: "left",
    RankEnded: "died",
}


def status_after(status: Status, message: Move) -> Status:
    """What a rank's status becomes: the first end that it comes to is the one that counts."""
    return _AFTER[type(message)] if status in ("starting", "running") else status


class RunRecord:
    """A run as its messages tell it.

    Attributes:
        status: by rank.
        metrics: every value that was logged.
        log: the newest lines.
        progress: how far each loop is, by (description, rank).
        notices: what the run itself had to say.
    """

    def __init__(self, world_size: int) -> None:
        self.status: dict[int, Status] = dict.fromkeys(range(world_size), "starting")
        self.metrics = MetricTable()
        self.log = Log()
        self.progress: dict[tuple[str, int], Progress] = {}
        self.notices: deque[Notice] = deque(maxlen=NOTICES)

    def fold(self, message: RunMessage) -> None:
        """Take the next message into account."""
        match message:
            case Output():
                self.log.add(message)
            case Metrics(rank=rank, records=records):
                for record in records:
                    self.metrics.add(rank, record.step, record.values)
            case Progress(description=description, rank=rank):
                self._note_progress((description, rank), message)
            case Notice():
                self.notices.append(message)
            case Ready() | Returned() | Raised() | Left() | RankEnded():
                rank = message.local_rank if isinstance(message, RankEnded) else message.rank
                self.status[rank] = status_after(self.status.get(rank, "starting"), message)
            case Waiting() | Interrupted():
                pass
            case _:
                assert_never(message)

    def _note_progress(self, key: tuple[str, int], progress: Progress) -> None:
        self.progress[key] = progress
        if len(self.progress) > PROGRESS_LOOPS:
            del self.progress[next(iter(self.progress))]
