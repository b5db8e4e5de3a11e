"""Passes: which prepared loaders are being iterated now, and what their current batch is."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from inspect import ismethod
from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Pass", "Passes"]


@dataclass(slots=True, eq=False)
class Pass:
    """One iteration over a prepared loader, as its current batch stands.

    Attributes:
        is_last: no batch comes after this one.
        size: samples in this rank's batch; None where the batch does not tell.
        real: how many of them are its own and no repetitions; None when all are.
        loader: what is iterated; None where nobody said.
        taken: batches handed out, the current one included.
        is_over: the loop has been left.
    """

    is_last: bool = False
    size: int | None = None
    real: int | None = None
    loader: object = None
    taken: int = 0
    is_over: bool = False


class Passes:
    """The passes under way, innermost last: an evaluation within training has its own.

    Args:
        on_idle: called when the last one has ended, by exhaustion or by `break`. A method is not
            kept alive by it.
    """

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self._live: list[Pass] = []
        self._on_idle: Callable[[], Callable[[], None] | None] = (
            WeakMethod(on_idle) if ismethod(on_idle) else lambda: on_idle
        )

    def __iter__(self) -> Iterator[Pass]:
        return iter(list(self._live))

    @property
    def current(self) -> Pass | None:
        """The innermost pass, None outside of all loops."""
        return self._live[-1] if self._live else None

    @property
    def at_end(self) -> bool:
        """Whether the current batch is the last of the innermost loop."""
        return bool(self._live) and self._live[-1].is_last

    def begin(self, one: Pass) -> None:
        """A new innermost pass."""
        self._live.append(one)

    def end(self, one: Pass) -> None:
        """The pass is over; to say so again changes nothing."""
        if one in self._live:
            self._live.remove(one)
            one.is_over, one.loader = True, None  # no circle that only the collector ends
            on_idle = self._on_idle()
            if on_idle is not None and not self._live:
                on_idle()

    @contextmanager
    def begun(self, loader: object = None) -> Iterator[Pass]:
        """A new innermost pass over `loader`."""
        one = Pass(loader=loader)
        self.begin(one)
        try:
            yield one
        finally:
            self.end(one)
