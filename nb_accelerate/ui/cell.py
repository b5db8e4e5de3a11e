"""What stands under the launching cell: text as it comes, and one block that changes in place.

A block is addressed by its id, so it changes where it stands, whichever thread changes it and
whichever cell runs by then. Prints are not: they go to the cell that runs. A run in the background
therefore shows its text in its block.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextvars import copy_context
from html import escape
from threading import RLock
from typing import TYPE_CHECKING, Protocol, TextIO

from nb_accelerate.record import plain
from nb_accelerate.ui.board import RED, Board
from nb_accelerate.ui.text import TextView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nb_accelerate.messages import RunMessage, Stream
    from nb_accelerate.ui.board import Bundle

__all__ = ["BackgroundCellView", "Block", "CellBlock", "CellView", "flush_cell", "write_to_cell"]

UPDATE_SECONDS = 0.1
"""More often helps no eye, and a front end that is flooded may lose the last state."""
SCROLLBACK_LINES = 400
SCROLLBACK_LINE_CHARACTERS = 1_000


class Block(Protocol):
    """A piece of a cell's output that changes in place."""

    def display(self, bundle: Bundle) -> None:
        """Put it below what is there; once, in the cell's own thread."""

    def update(self, bundle: Bundle) -> None:
        """Change it; in any thread."""


class CellBlock:
    """A block under the IPython cell that displays it."""

    def __init__(self) -> None:
        self._context = copy_context()
        self._update: Callable[..., object] | None = None

    def display(self, bundle: Bundle) -> None:
        """Put it below what is there."""
        from IPython.display import display

        self._context = copy_context()
        handle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._update = handle.update if handle is not None else None

    def update(self, bundle: Bundle) -> None:
        """Change it."""
        if self._update is None:
            return
        try:
            self._update(bundle, raw=True)
        except LookupError:
            # ipykernel 7.0.1 finds its shell in the context of the cell's own thread alone.
            self._context.copy().run(self._update, bundle, raw=True)


def write_to_cell(stream: Stream, text: str) -> None:
    """Write to the running cell, whose kernel sends it within a fifth of a second."""
    _standard(stream).write(text)


def flush_cell(stream: Stream) -> None:
    """Have it sent now; waits for the kernel's other thread, some 0.4 ms."""
    _standard(stream).flush()


def _standard(stream: Stream) -> TextIO:
    return sys.stderr if stream == "stderr" else sys.stdout


class _Live:
    """Keeps a block as fresh as it is good for it."""

    def __init__(self, block: Block, draw: Callable[[], Bundle]) -> None:
        self._block = block
        self._draw = draw
        self._drawn_at: float | None = None

    @property
    def is_displayed(self) -> bool:
        return self._drawn_at is not None

    def due_at(self, now: float) -> float:
        return now if self._drawn_at is None else self._drawn_at + UPDATE_SECONDS

    def refresh(self, now: float) -> None:
        first, self._drawn_at = self._drawn_at is None, now
        bundle = self._draw()
        if first:
            self._block.display(bundle)
        else:
            self._block.update(bundle)


class CellView:
    """Watches a run that its cell waits for; everything happens in the cell's thread.

    Text is printed; metrics and bars stand in a block, once there are any.
    """

    def __init__(
        self,
        num_ranks: int,
        *,
        folder: Path | None = None,
        write: Callable[[Stream, str], None] = write_to_cell,
        flush: Callable[[Stream], None] = flush_cell,
        block: Block | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._text = TextView(write, num_ranks=num_ranks, folder=folder, clock=clock, flush=flush)
        self._board = Board(num_ranks)
        self._live = _Live(block or CellBlock(), self._board.drawn)

    def show(self, message: RunMessage) -> None:
        """Take in the next message; `tick` shows it."""
        self._text.show(message)
        self._board.show(message)

    def tick(self, now: float) -> None:
        """Show what is due."""
        self._text.tick(now)
        if self._is_stale and now >= self._live.due_at(now):
            self._live.refresh(now)

    def deadline(self) -> float | None:
        """When `tick` must be called at the latest; None when nothing waits."""
        drawing = self._live.due_at(self._clock()) if self._is_stale else None
        due = [self._text.deadline(), drawing]
        return min((each for each in due if each is not None), default=None)

    def close(self, summary: str, *, ok: bool) -> None:
        """Show all that waits and how the run ended."""
        has_block = self._live.is_displayed or self._board.has_content
        self._text.close("" if has_block else summary, ok=ok)
        if has_block:
            self._board.end(summary, ok=ok)
            self._live.refresh(self._clock())

    @property
    def _is_stale(self) -> bool:
        shown = self._live.is_displayed or self._board.has_content
        return shown and self._board.changed


class BackgroundCellView:
    """Watches a run that goes on while other cells run: all in a block of the launching cell.

    To be made in the launching cell's own thread; after that, one thread shows and another may
    publish.
    """

    def __init__(
        self,
        num_ranks: int,
        *,
        folder: Path | None = None,
        block: Block | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = RLock()
        self._clock = clock
        self._scrollback = Scrollback()
        self._text = TextView(
            self._scrollback.write, num_ranks=num_ranks, folder=folder, clock=clock
        )
        self._board = Board(num_ranks)
        self._live = _Live(block or CellBlock(), self._drawn)
        self._live.refresh(clock())

    def show(self, message: RunMessage) -> None:
        """Take in the next message; `tick` shows it."""
        with self._lock:
            self._text.show(message)
            self._board.show(message)

    def tick(self, now: float) -> None:
        """Show what is due."""
        with self._lock:
            self._text.tick(now)
            if self._is_stale and now >= self._live.due_at(now):
                self._live.refresh(now)

    def deadline(self) -> float | None:
        """When `tick` must be called at the latest; None when nothing waits."""
        with self._lock:
            drawing = self._live.due_at(self._clock()) if self._is_stale else None
            due = [self._text.deadline(), drawing]
        return min((each for each in due if each is not None), default=None)

    def close(self, summary: str, *, ok: bool) -> None:
        """Show all that waits and how the run ended."""
        with self._lock:
            self._text.close("", ok=ok)
            self._board.end(summary, ok=ok)
            self._live.refresh(self._clock())

    def publish(self) -> None:
        """Send the newest state once more, from a running cell.

        Notebook runners without a browser keep only what is sent while a cell runs.
        """
        with self._lock:
            self._live.refresh(self._clock())

    @property
    def _is_stale(self) -> bool:
        return self._board.changed or self._scrollback.changed

    def _drawn(self) -> Bundle:
        bundle = self._board.drawn()
        html = f"{bundle['text/html']}{self._scrollback.html()}"
        text = f"{self._scrollback.text()}\n{bundle['text/plain']}".strip("\n")
        self._scrollback.changed = False
        return {"text/html": html, "text/plain": text or "starting"}


class Scrollback:
    """The newest lines of a text that comes in pieces.

    Attributes:
        changed: since this was last set to False.
    """

    def __init__(self) -> None:
        self.changed = False
        self._lines: deque[tuple[Stream, str]] = deque(maxlen=SCROLLBACK_LINES)
        self._is_open = False

    def write(self, stream: Stream, text: str) -> None:
        """Append to it."""
        self.changed = True
        *whole, rest = text.split("\n")
        for line in whole:
            self._append(stream, line)
            self._is_open = False
        if rest:
            self._append(stream, rest)
            self._is_open = True

    def text(self) -> str:
        """The lines."""
        return "\n".join(plain(line) for _, line in self._lines)

    def html(self) -> str:
        """The lines, scrolled to the newest."""
        if not self._lines:
            return ""
        lines = "\n".join(_line_html(stream, line) for stream, line in self._lines)
        # A reversed column keeps its end in view without a script.
        box = "display: flex; flex-direction: column-reverse; max-height: 24em; overflow: auto"
        return f'<div style="{box}"><pre style="margin: 0">{lines}</pre></div>'

    def _append(self, stream: Stream, text: str) -> None:
        before = self._lines.pop()[1] if self._is_open else ""
        self._lines.append((stream, (before + text)[:SCROLLBACK_LINE_CHARACTERS]))


def _line_html(stream: Stream, line: str) -> str:
    text = escape(plain(line))
    return f'<span style="color: {RED}">{text}</span>' if stream == "stderr" else text
