"""What the ranks wrote, line by line."""

from __future__ import annotations

import html
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

from nb_accelerate.record.formats import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nb_accelerate.messages import Output, Stream

__all__ = ["LOG_CHARACTERS", "Log", "LogLine"]

LOG_LINES = 20_000
LOG_CHARACTERS = 8_000_000
LINE_CHARACTERS = 64 * 1024
"""A line that is longer is kept as several."""
SHOWN_LINES = 500
"""Of each rank's log, in HTML."""
REPR_LINES = 50


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
