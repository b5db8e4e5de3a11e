"""What a terminal shows: text as it comes, and below it the board while the run goes on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from nb_accelerate.ui.board import Board
from nb_accelerate.ui.text import TextView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.live import Live

    from nb_accelerate.messages import RunMessage, Stream

__all__ = ["TerminalView"]

UPDATE_SECONDS = 0.1


class TerminalView:
    """Watches a run in a terminal, or in a file that standard output goes to.

    A file, and a terminal that a background run would share with a prompt, get the text, and the
    board once, at the end.
    """

    def __init__(
        self,
        num_ranks: int,
        *,
        folder: Path | None = None,
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._text = TextView(self._write, num_ranks=num_ranks, folder=folder, clock=clock)
        self._board = Board(num_ranks)
        self._may_be_live = live and sys.stdout.isatty()
        self._live: Live | None = None
        self._drawn_at = 0.0

    def show(self, message: RunMessage) -> None:
        """Take in the next message; `tick` shows it."""
        self._text.show(message)
        self._board.show(message)

    def tick(self, now: float) -> None:
        """Show what is due."""
        self._text.tick(now)
        if self._is_stale and now >= self._drawn_at + UPDATE_SECONDS:
            self._draw(now)

    def deadline(self) -> float | None:
        """When `tick` must be called at the latest; None when nothing waits."""
        drawing = self._drawn_at + UPDATE_SECONDS if self._is_stale else None
        due = [self._text.deadline(), drawing]
        return min((each for each in due if each is not None), default=None)

    def close(self, summary: str, *, ok: bool) -> None:
        """Show all that waits, the board and how the run ended."""
        self._text.close("", ok=ok)
        if self._live is not None:
            self._draw(self._clock())
            self._live.stop()
            self._live = None
        elif self._board.has_content:
            self._write("stdout", f"{self._board.text()}\n")
        if summary:
            self._write("stdout" if ok else "stderr", f"{summary}\n")

    @property
    def _is_stale(self) -> bool:
        return self._may_be_live and self._board.has_content and self._board.changed

    def _draw(self, now: float) -> None:
        from rich.text import Text

        self._drawn_at = now
        if self._live is None:
            self._live = _started_live()
        self._live.update(Text(self._board.drawn()["text/plain"]), refresh=True)

    def _write(self, stream: Stream, text: str) -> None:
        target = sys.stderr if stream == "stderr" else sys.stdout
        if self._live is not None and target.isatty():
            from rich.text import Text

            self._live.console.print(Text.from_ansi(text), soft_wrap=True)
        else:
            target.write(text)
            target.flush()


def _started_live() -> Live:
    from rich.live import Live

    live = Live(auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    live.start()
    return live
