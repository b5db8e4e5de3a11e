"""Passes: which prepared loaders are being iterated now, and what their current batch is."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """

    is_last: bool = False
    size: int | None = None
    real: int | None = None


class Passes:
    """The passes under way, innermost last: an evaluation within training has its own.

    Args:
        on_idle: called when the last one has ended, by exhaustion or by `break`.
    """

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self._live: list[Pass] = []
        self._on_idle = on_idle

    @property
    def current(self) -> Pass | None:
        """The innermost pass, None outside of all loops."""
        return self._live[-1] if self._live else None

    @property
    def at_end(self) -> bool:
        """Whether the current batch is the last of the innermost loop."""
        return bool(self._live) and self._live[-1].is_last

    @contextmanager
    def begun(self) -> Iterator[Pass]:
        """A new innermost pass."""
        one = Pass()
        self._live.append(one)
        try:
            yield one
        finally:
            self._live.remove(one)
            if not self._live:
                self._on_idle()
