"""A run's messages, folded into what is known of it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never

from nb_accelerate.messages import (
    Interrupted,
    Left,
    Metrics,
    Notice,
    Output,
    Progress,
    Raised,
    RankEnded,
    Ready,
    Returned,
    Waiting,
)
from nb_accelerate.record.log import Log
from nb_accelerate.record.metrics import MetricTable

if TYPE_CHECKING:
    from nb_accelerate.messages import RunMessage

__all__ = ["Move", "RunRecord", "Status", "status_after"]

Status: TypeAlias = Literal["starting", "running", "returned", "raised", "left", "died"]
"""What a rank is doing, or how it ended."""

PROGRESS_LOOPS = 2_000
NOTICES = 1_000

Move: TypeAlias = Ready | Returned | Raised | Left | RankEnded
"""The messages that tell what becomes of a rank."""

_AFTER: dict[type[Move], Status] = {
    Ready: "running",
    Returned: "returned",
    Raised: "raised",
    Left: "left",
    RankEnded: "died",
}


def status_after(status: Status, message: Move) -> Status:
    """What a rank's status becomes: the first end that it comes to is the one that counts."""
    return _AFTER[type(message)] if status in ("starting", "running") else status


class RunRecord:
    """A run as its messages tell it.

    Attributes:
        status: by rank.
        metrics: every value that was logged.
        log: the newest lines.
        progress: how far each loop is, by (description, rank).
        notices: what the run itself had to say.
    """

    def __init__(self, world_size: int) -> None:
        self.status: dict[int, Status] = dict.fromkeys(range(world_size), "starting")
        self.metrics = MetricTable()
        self.log = Log()
        self.progress: dict[tuple[str, int], Progress] = {}
        self.notices: deque[Notice] = deque(maxlen=NOTICES)

    def fold(self, message: RunMessage) -> None:
        """Take the next message into account."""
        match message:
            case Output():
                self.log.add(message)
            case Metrics(rank=rank, records=records):
                for record in records:
                    self.metrics.add(rank, record.step, record.values)
            case Progress(description=description, rank=rank):
                self._note_progress((description, rank), message)
            case Notice():
                self.notices.append(message)
            case Ready() | Returned() | Raised() | Left() | RankEnded():
                rank = message.local_rank if isinstance(message, RankEnded) else message.rank
                self.status[rank] = status_after(self.status.get(rank, "starting"), message)
            case Waiting() | Interrupted():
                pass
            case _:
                assert_never(message)

    def _note_progress(self, key: tuple[str, int], progress: Progress) -> None:
        self.progress[key] = progress
        if len(self.progress) > PROGRESS_LOOPS:
            del self.progress[next(iter(self.progress))]
