"""What bounds a run: times, and wishes for an early end."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Ask", "Limits"]


class Ask(enum.Enum):
    """Why a run should end before its function does."""

    INTERRUPT = "interrupted"
    STOP = "stopped"
    TIMEOUT = "timed out"


@dataclass(frozen=True, slots=True)
class Limits:
    """The times that bound a run, in seconds."""

    grace_seconds: float = 4.0
    hang_notice_seconds: float = 30.0
    timeout_seconds: float | None = None
    settles: bool = False
    """Wait for the processes' end, not just for their last word."""
