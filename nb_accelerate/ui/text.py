"""TextView: what the ranks print, as whole lines with their ranks."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from nb_accelerate.messages import Left, Notice, Output, RankEnded
from nb_accelerate.record import rank_tag
from nb_accelerate.ui.flow import Allowance, Line, Twins, Valve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nb_accelerate.messages import RunMessage, Stream

__all__ = ["TextView"]

BURST_WRITES, WRITES_PER_SECOND = 20, 50
"""Each write is a message to the front end, which all of a cell's messages share."""
WAITING_LINES = 8_192
"""More lines than this are dealt with before the next `tick`."""


class TextView:
    r"""Shows lines through `write(stream, text)`; a view.

    A line is tagged with its rank, or with all ranks that wrote it within a moment. Text without
    a newline is shown as it is and continued when its rest comes. Of a flood the newest lines are
    shown and the others counted. Bars ("\r" lines) are not text: a board shows them.

    Args:
        write: puts text on the screen, now; called by `tick` and `close` only.
        num_ranks: with one rank there are no tags.
        folder: the run folder, which holds what is not shown.
        clock: dates messages that bear no time.
        flush: makes what ranks have written visible at once. Our own words have time.
    """

    def __init__(
        self,
        write: Callable[[Stream, str], None],
        *,
        num_ranks: int = 1,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        flush: Callable[[Stream], None] = lambda _stream: None,
    ) -> None:
        self._clock = clock
        self._flush = flush
        self._folder = folder
        self._twins = Twins(num_ranks)
        self._valve = Valve()
        self._page = _Page(write, tagged=num_ranks > 1)
        self._writes = Allowance(BURST_WRITES, WRITES_PER_SECOND)
        self._open: set[tuple[int, Stream]] = set()

    def show(self, message: RunMessage) -> None:
        """Take in the next message; `tick` shows it."""
        match message:
            case Output():
                self._take(message)
            case Notice(text=text, level=level):
                stream: Stream = "stderr" if level == "warning" else "stdout"
                self._twins.add(Line([], stream, text))
            case Left(rank=rank) | RankEnded(local_rank=rank):
                self._twins.leave(rank)
            case _:
                pass  # not text
        if len(self._twins) > WAITING_LINES:
            self._let_through(math.inf, self._clock())

    def tick(self, now: float) -> None:
        """Show what is due."""
        self._let_through(now, now)
        self._release(self._valve.released(now))
        if self._page.size and self._writes.left(now) >= 1:
            urgent = self._page.urgent
            self._writes.take(self._page.send(), now)
            for stream in urgent:
                self._flush(stream)

    def deadline(self) -> float | None:
        """When `tick` must be called at the latest; None when nothing waits."""
        now = self._clock()
        written = self._writes.when(1, now) if self._page.size else None
        due = [self._twins.deadline(), self._valve.deadline(now), written]
        return min((each for each in due if each is not None), default=None)

    def close(self, summary: str, *, ok: bool) -> None:
        """Show all that waits, then the summary (if any)."""
        now = self._clock()
        self._let_through(math.inf, now)
        self._release(self._valve.released(now, at_once=True))
        self._page.end_line()
        if summary:
            self._put([Line([], "stdout" if ok else "stderr", summary)])
        self._page.send()

    def _take(self, output: Output) -> None:
        key = (output.rank, output.stream)
        continues = key in self._open
        if output.ending == "":
            self._open.add(key)
        else:
            self._open.discard(key)
        if output.ending != "\r":
            text, ends = output.text, output.ending == "\n"
        elif continues:
            text, ends = "", True  # a bar takes over the row of the open text
        else:
            return
        at = output.time or self._clock()
        self._twins.add(Line([output.rank], output.stream, text, ends, continues, at))

    def _let_through(self, until: float, now: float) -> None:
        """Of the lines that are due at `until`, as many as there is room for now."""
        self._put(self._valve.let_through(self._twins.due(until), now))

    def _release(self, tail: list[Line]) -> None:
        hidden = self._valve.hidden
        if tail and hidden:
            count = f"{hidden:,}".replace(",", " ")
            where = f", all in {self._folder / 'log.txt'}" if self._folder else ""
            self._put([Line([], "stdout", f"… {count} lines not shown here{where}")])
        self._put(tail)

    def _put(self, lines: list[Line]) -> None:
        for line in lines:
            self._page.put(line)


class _Page:
    """Where the cursor stands, and what waits to be written in as few writes as can be.

    Attributes:
        size: the pieces that wait.
        urgent: the streams to which ranks wrote some of them.
    """

    def __init__(self, write: Callable[[Stream, str], None], *, tagged: bool) -> None:
        self._write = write
        self._tagged = tagged
        self.urgent: set[Stream] = set()
        self._tags: dict[tuple[int, ...], str] = {}
        self._pieces: list[tuple[Stream, list[str]]] = []
        self._owner: tuple[list[int], Stream] | None = None  # of the line the cursor is in

    @property
    def size(self) -> int:
        return len(self._pieces)

    def put(self, line: Line) -> None:
        if line.ranks:
            self.urgent.add(line.stream)
        owner = (line.ranks, line.stream)
        if not (line.continues and owner == self._owner):
            if line.continues and not line.text:
                return  # the line that this would end has been ended by others
            self.end_line()
            self._add(line.stream, self._tag(line.ranks))
        self._add(line.stream, f"{line.text}\n" if line.ends else line.text)
        self._owner = None if line.ends else owner

    def end_line(self) -> None:
        """Other text comes below what is open."""
        if self._owner is not None:
            self._add(self._owner[1], "\n")
            self._owner = None

    def send(self) -> int:
        """Write what waits; return in how many writes."""
        if len(self._pieces) > BURST_WRITES:
            self._pieces = self._by_stream()
        count, self.urgent = len(self._pieces), set()
        while self._pieces:
            stream, texts = self._pieces.pop(0)
            self._write(stream, "".join(texts))
        return count

    def _add(self, stream: Stream, text: str) -> None:
        if not text:
            return
        if not self._pieces or self._pieces[-1][0] != stream:
            self._pieces.append((stream, []))
        self._pieces[-1][1].append(text)

    def _by_stream(self) -> list[tuple[Stream, list[str]]]:
        """Gives up the order between the two streams, not that within them."""
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        return [(s, [t for of, texts in self._pieces if of == s for t in texts]) for s in streams]

    def _tag(self, ranks: list[int]) -> str:
        if not ranks or not self._tagged:
            return ""
        key = tuple(sorted(ranks))
        if key not in self._tags:
            self._tags[key] = f"{rank_tag(key)} "
        return self._tags[key]
