"""Who waits where: notices for collectives that do not get on. Pure but for its own memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nb_accelerate.launch.places import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nb_accelerate.launch.standing import Standing
    from nb_accelerate.messages import StackShown, Waiting

__all__ = ["Watch", "left_behind"]

_ANSWER_SECONDS = 0.5
_STUCK_SECONDS = 6.0
_NEWS_SECONDS = 11.0


@dataclass
class Watch:
    """Turns the ranks' `Waiting` messages into one notice, then others at growing intervals."""

    first_seconds: float
    labels: Mapping[str, str]
    _shown: int = 0
    _asked_at: float | None = None
    _answers: dict[int, StackShown] = field(default_factory=dict)
    _alarm: Waiting | None = None

    def hears(self, waiting: Waiting, now: float) -> bool:
        """Take one in; True when all ranks should now be asked for their stacks."""
        due = self.first_seconds * 2**self._shown
        if waiting.seconds < due or self._asked_at is not None:
            return False
        self._alarm, self._asked_at, self._answers = waiting, now, {}
        return True

    def learns(self, answer: StackShown) -> None:
        """Take in where a rank stands."""
        self._answers[answer.rank] = answer

    def notice(self, standings: Sequence[Standing], now: float) -> str | None:
        """The notice, once the ranks have answered or had time to."""
        if self._alarm is None or self._asked_at is None:
            return None
        asked = [s for s in standings if s.answer is None and not s.is_gone]
        complete = all(s.rank in self._answers for s in asked)
        if not complete and now < self._asked_at + _ANSWER_SECONDS:
            return None
        seconds, self._alarm, self._asked_at = self._alarm.seconds, None, None
        self._shown += 1
        lines = (f"  rank {s.rank} {self._describe(s)}" for s in standings)
        return f"No progress in a collective for {seconds:.0f} s:\n" + "\n".join(lines)

    def deadline(self) -> float | None:
        """When `notice` should be asked for at the latest."""
        return None if self._asked_at is None else self._asked_at + _ANSWER_SECONDS

    def _describe(self, standing: Standing) -> str:
        if standing.answer is not None:
            return "has already returned"
        if standing.is_gone:
            return "has ended"
        answer = self._answers.get(standing.rank)
        if answer is None:
            return "does not answer: it is stopped, or in native code that holds Python's lock"
        where = place_of(answer.stack, self.labels)
        return f"waits in {answer.call}, {where}" if answer.call else f"is at {where}"


def left_behind(standings: Sequence[Standing], now: float) -> bool:
    """Whether all that still run wait in a collective that a rank, having returned, never joins.

    gloo notices by itself that a peer has gone; NCCL does not.
    """
    running = [s for s in standings if s.answer is None and not s.is_gone]
    return (
        bool(running)
        and len(running) < len(standings)
        and all(
            s.waiting is not None
            and s.waiting.seconds >= _STUCK_SECONDS
            and now - s.waiting_heard < _NEWS_SECONDS
            for s in running
        )
    )
