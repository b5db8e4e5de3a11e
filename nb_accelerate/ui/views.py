"""Views: whoever watches a run. This is their contract, and which one a place gets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from nb_accelerate.ui.board import Board
from nb_accelerate.ui.cell import BackgroundCellView, CellBlock, CellView
from nb_accelerate.ui.terminal import TerminalView
from nb_accelerate.ui.text import TextView

if TYPE_CHECKING:
    from pathlib import Path

    from nb_accelerate.messages import RunMessage
    from nb_accelerate.record import Log, MetricTable

__all__ = [
    "BackgroundCellView",
    "CellView",
    "Recorder",
    "Tee",
    "TerminalView",
    "TextView",
    "View",
    "default_view",
    "show_past",
]


class View(Protocol):
    """Watches a run. All calls but those that say so come from one thread."""

    def show(self, message: RunMessage) -> None:
        """Take in the next message; quick, it draws nothing yet."""

    def tick(self, now: float) -> None:
        """Show what is due at `now` (time.monotonic()); called after each batch of messages."""

    def deadline(self) -> float | None:
        """When `tick` must be called at the latest; None when nothing waits."""

    def close(self, summary: str, *, ok: bool) -> None:
        """The run has ended: show all that waits and how it ended."""


class Recorder:
    """Remembers what it is shown.

    Attributes:
        messages: in order.
        ticks: the times of all ticks.
        summary: how the run ended; None while it has not.
        ok: whether it ended well.
    """

    def __init__(self) -> None:
        self.messages: list[RunMessage] = []
        self.ticks: list[float] = []
        self.summary: str | None = None
        self.ok: bool | None = None

    def show(self, message: RunMessage) -> None:
        """Remember it."""
        self.messages.append(message)

    def tick(self, now: float) -> None:
        """Remember it."""
        self.ticks.append(now)

    def deadline(self) -> float | None:
        """Nothing is ever due."""
        return None

    def close(self, summary: str, *, ok: bool) -> None:
        """Remember it."""
        self.summary, self.ok = summary, ok


class Tee:
    """Shows a run to several views."""

    def __init__(self, *views: View) -> None:
        self._views = views

    def show(self, message: RunMessage) -> None:
        """Show it to each."""
        for view in self._views:
            view.show(message)

    def tick(self, now: float) -> None:
        """Tell each."""
        for view in self._views:
            view.tick(now)

    def deadline(self) -> float | None:
        """The earliest of theirs."""
        due = [view.deadline() for view in self._views]
        return min((each for each in due if each is not None), default=None)

    def close(self, summary: str, *, ok: bool) -> None:
        """Tell each."""
        for view in self._views:
            view.close(summary, ok=ok)


def default_view(num_ranks: int, *, folder: Path | None = None, block: bool = True) -> View:
    """The view for where this code runs: a notebook's cell or a terminal.

    Args:
        num_ranks: of the run that it will watch.
        folder: the run folder, named when not all output is shown.
        block: whether the cell waits for the run's end. If not, call this in the cell's own
            thread; the view's other methods may be called from any.
    """
    if not _in_a_kernel():
        return TerminalView(num_ranks, folder=folder, live=block)
    if block:
        return CellView(num_ranks, folder=folder)
    return BackgroundCellView(num_ranks, folder=folder)


def show_past(metrics: MetricTable, log: Log, *, summary: str, ok: bool) -> None:
    """Draw a run that is known, ended or not, in the running cell or the terminal."""
    ranks = {*metrics.ranks, *log.ranks}
    board = Board.of(metrics, num_ranks=max(ranks, default=0) + 1)
    board.end(summary, ok=ok)
    bundle = board.drawn()
    if _in_a_kernel():
        html = f"{bundle['text/html']}{log._repr_html_()}"
        CellBlock().display({**bundle, "text/html": html})
    else:
        sys.stdout.write(f"{log!r}\n{bundle['text/plain']}\n")


def _in_a_kernel() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
