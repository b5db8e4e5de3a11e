"""Standing: what the kernel knows of one rank of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nb_accelerate.messages import Raised, RankEnded, Returned, Waiting

__all__ = ["Standing"]


@dataclass(slots=True)
class Standing:
    """One rank's part of a run so far; the driver writes it, everyone else reads."""

    rank: int
    pid: int | None = None
    is_ready: bool = False
    """It has joined the group and waits for its call."""
    answer: Returned | Raised | None = None
    descriptor: int | None = None
    """The shared-memory file that came with the answer."""
    has_left: bool = False
    """It has said that all is flushed and it goes."""
    end: RankEnded | None = None
    """Its process is gone, as its parent tells."""
    lost: bool = False
    """Its process is gone, but its parent went first, so nobody knows how."""
    signalled: bool = False
    """We have sent it a signal: what follows is our doing."""
    waiting: Waiting | None = None
    """The last that it told of a collective that does not get on."""
    waiting_heard: float = 0.0

    @property
    def is_gone(self) -> bool:
        """The process is gone."""
        return self.end is not None or self.lost

    @property
    def is_done(self) -> bool:
        """Nothing more is to be heard of it."""
        return self.has_left or self.is_gone
