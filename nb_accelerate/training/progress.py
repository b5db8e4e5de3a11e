"""Tracked loops: how far they are, told at a rate that costs nothing."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nb_accelerate.replica import Reporter

__all__ = ["Tracked"]

T = TypeVar("T")

INTERVAL_SECONDS = 0.05
"""Between two reports of one loop: 20 a second are more than an eye sees."""


class Tracked(Generic[T]):
    """An iterable that reports how far it is: at its start, at times, and at its end.

    The end is reported however the loop is left. Items count when their turn is over.
    """

    def __init__(
        self,
        iterable: Iterable[T],
        description: str,
        reporter: Reporter,
        total: int | None = None,
    ) -> None:
        self._iterable = iterable
        self._description = description
        self._reporter = reporter
        self._total = total

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # its own TypeError says it best

    def __iter__(self) -> Iterator[T]:
        total = self._length()
        done = 0
        self._tell(done, total)
        due = monotonic() + INTERVAL_SECONDS
        try:
            for item in self._iterable:
                yield item
                done += 1
                if monotonic() >= due:
                    self._tell(done, total)
                    due = monotonic() + INTERVAL_SECONDS
        finally:
            self._tell(done, total, finished=True)

    def _tell(self, done: int, total: int | None, *, finished: bool = False) -> None:
        self._reporter.progress(self._description, done, total, finished=finished)

    def _length(self) -> int | None:
        if self._total is None:
            with suppress(TypeError, NotImplementedError):
                return len(self)
        return self._total
