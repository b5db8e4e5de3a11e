"""How ranks are brought to an end: rung by rung, each with a signal and a patience. Pure.

Times are seconds of `time.monotonic()`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from nb_accelerate.launch.standing import Standing

__all__ = ["AFTER_FAILURE", "AT_ONCE", "Descent", "Ladder", "Rung", "after_interrupt"]

# A process that has outlived SIGKILL for so long is stuck in the system itself.
_STUCK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of an ending."""

    signal: signal.Signals | None
    """None: just wait."""
    whole_group: bool
    """To the rank's children (loader workers) as well."""
    patience_seconds: float


Ladder: TypeAlias = tuple[Rung, ...]

# The last rung is repeated until all are gone.
_KILL = Rung(signal.SIGKILL, whole_group=True, patience_seconds=0.5)

# First the others' own words: a rank whose peer has died says so within milliseconds. Then an
# interrupt, so that `finally` blocks of ordinary Python run.
AFTER_FAILURE: Ladder = (
    Rung(None, whole_group=False, patience_seconds=0.08),
    Rung(signal.SIGINT, whole_group=False, patience_seconds=0.1),
    _KILL,
)
AT_ONCE: Ladder = (_KILL,)


def after_interrupt(grace_seconds: float) -> Ladder:
    """KeyboardInterrupt and time to save, then SIGTERM, then SIGKILL."""
    return (
        Rung(signal.SIGINT, whole_group=False, patience_seconds=grace_seconds),
        Rung(signal.SIGTERM, whole_group=True, patience_seconds=1.0),
        _KILL,
    )


class Descent:
    """The way down a ladder: which rung is due, and for whom."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._rungs: Ladder = ()
        self._began = 0.0
        self._ends = 0.0
        self._in_haste = False

    @property
    def has_begun(self) -> bool:
        """The run is being ended."""
        return bool(self._rungs)

    def begin(self, ladder: Ladder, now: float) -> None:
        """Go down `ladder`, unless it is another one already; its first rung is due at once."""
        if not self._rungs:
            self._rungs, self._began, self._ends = ladder, now, now

    def hasten(self, now: float) -> None:
        """Skip all patience, for everyone."""
        self._rungs, self._ends, self._in_haste = AT_ONCE, now, True

    def deadline(self) -> float | None:
        """When the next rung is due; None before it has begun."""
        return self._ends if self._rungs else None

    def due(self, now: float) -> Rung | None:
        """The rung that is due, which is thereby taken."""
        if not self._rungs or now < self._ends:
            return None
        rung, *rest = self._rungs
        self._rungs = tuple(rest) or (rung,)
        self._ends = now + rung.patience_seconds
        return rung

    def concerns(self, standing: Standing, rung: Rung, now: float) -> bool:
        """Whether `rung` is meant for this rank.

        One that has answered flushes its files and runs its exit functions: it has all the grace.
        """
        if standing.is_gone:
            return False
        if standing.answer is None or self._in_haste:
            return True
        return rung.signal == signal.SIGKILL and now > self._began + self._grace_seconds

    def has_failed(self, now: float) -> bool:
        """Whether there is no point in waiting any longer."""
        return self.has_begun and now > self._began + self._grace_seconds + _STUCK_SECONDS
