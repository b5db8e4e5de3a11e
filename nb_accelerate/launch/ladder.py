"""How ranks are brought to an end: rung by rung, each with a signal and a patience. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["AFTER_FAILURE", "AT_ONCE", "Ladder", "Rung", "after_interrupt"]


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
