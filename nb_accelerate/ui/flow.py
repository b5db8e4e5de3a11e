"""How much of what is printed a cell takes, and when.

A notebook server cuts a cell's stream beyond 1 MB/s and 1000 messages/s (over 3 s), and a browser
chokes before that. What goes beyond is in the run folder; the cell gets the newest of it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nb_accelerate.messages import Stream

__all__ = ["Allowance", "Line", "Twins", "Valve"]

TWIN_SECONDS = 0.0015
"""So long a line waits for the same one of other ranks; a selector rounds it up to 2 ms."""
BURST_LINES, LINES_PER_SECOND = 2_000, 1_000
BURST_CHARACTERS, CHARACTERS_PER_SECOND = 1_000_000, 512_000
TAIL_LINES, TAIL_CHARACTERS = 200, 200_000
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 4.0
"""A flood is looked at again after a pause, which doubles while the flood goes on."""


@dataclass(slots=True)
class Line:
    """A piece of text and the ranks that wrote it; none for what the run itself says."""

    ranks: list[int]
    stream: Stream
    text: str
    ends: bool = True
    """A newline follows."""
    continues: bool = False
    """Its beginning has been passed on before."""
    time: float = 0.0
    number: int = field(default=0, repr=False)


class Allowance:
    """So much at once, so much per second. Times are those of `time.monotonic()`."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._at: float | None = None

    def left(self, now: float) -> float:
        """What may be taken now; negative after more was taken than there was."""
        if self._at is not None:
            gained = max(0.0, now - self._at) * self._per_second
            self._left = min(self._burst, self._left + gained)
        self._at = now
        return self._left

    def take(self, amount: float, now: float) -> None:
        """Take it, whether there is enough or not."""
        self._left = self.left(now) - amount

    def when(self, amount: float, now: float) -> float:
        """The time at which `amount` may be taken."""
        return now + max(0.0, min(amount, self._burst) - self.left(now)) / self._per_second


class Twins:
    """Holds a line back for a moment, to fold it with the same line of other ranks.

    The lines of each rank stay in their order.
    """

    def __init__(self, num_ranks: int) -> None:
        self._living = set(range(num_ranks))
        self._waiting: deque[Line] = deque()
        self._alike: dict[tuple[Stream, str], list[Line]] = {}
        self._newest: dict[int, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, line: Line) -> None:
        """Take a line of one rank, or of none."""
        if line.ranks and line.ends and not line.continues:
            alike = self._alike.setdefault((line.stream, line.text), [])
            rank = line.ranks[0]
            # Only a line behind all that this rank has waiting may become its line, too.
            place = bisect_right(alike, self._newest.get(rank, 0), key=attrgetter("number"))
            if place < len(alike):
                twin = alike[place]
                twin.ranks.append(rank)
                self._newest[rank] = twin.number
                return
            alike.append(line)
        self._queue(line)

    def leave(self, rank: int) -> None:
        """No line waits for this rank any more."""
        self._living.discard(rank)

    def due(self, now: float) -> list[Line]:
        """The lines that need not wait any longer, in order."""
        due = []
        while self._waiting and self._is_due(self._waiting[0], now):
            due.append(self._next())
        return due

    def deadline(self) -> float | None:
        """When a line will be due; None while none waits."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        return first.time if self._is_complete(first) else first.time + TWIN_SECONDS

    def _queue(self, line: Line) -> None:
        self._number += 1
        line.number = self._number
        self._waiting.append(line)
        for rank in line.ranks:
            self._newest[rank] = line.number

    def _next(self) -> Line:
        line = self._waiting.popleft()
        alike = self._alike.get((line.stream, line.text))
        if alike and alike[0] is line:
            del alike[0]
            if not alike:
                del self._alike[(line.stream, line.text)]
        return line

    def _is_due(self, line: Line, now: float) -> bool:
        return now >= line.time + TWIN_SECONDS or self._is_complete(line)

    def _is_complete(self, line: Line) -> bool:
        foldable = line.ranks and line.ends and not line.continues
        return not foldable or (
            len(line.ranks) >= len(self._living) and self._living.issubset(line.ranks)
        )


class _Tail:
    """The newest lines of a flood, with a fair share for each rank.

    Attributes:
        characters: of all that is kept.
    """

    def __init__(self) -> None:
        self.characters = 0
        self._size = 0
        self._by_rank: dict[int, deque[Line]] = {}

    def __len__(self) -> int:
        return self._size

    def add(self, line: Line) -> int:
        """Keep it; the number of lines that had to make room."""
        self._by_rank.setdefault(line.ranks[0], deque()).append(line)
        self._size += 1
        self.characters += len(line.text)
        dropped = 0
        while self._size > TAIL_LINES or (self._size > 1 and self.characters > TAIL_CHARACTERS):
            longest = max(self._by_rank.values(), key=len)
            self.characters -= len(longest.popleft().text)
            self._size -= 1
            dropped += 1
        return dropped

    def taken(self) -> list[Line]:
        """All of it, in order; nothing is kept after that."""
        lines = [line for kept in self._by_rank.values() for line in kept]
        self.characters, self._size, self._by_rank = 0, 0, {}
        return sorted(lines, key=attrgetter("number"))


class Valve:
    """Lets lines through while they are few enough; of a flood it keeps the newest.

    Attributes:
        hidden: lines that were let go since the flood began.
    """

    def __init__(self) -> None:
        self.hidden = 0
        self._lines = Allowance(BURST_LINES, LINES_PER_SECOND)
        self._characters = Allowance(BURST_CHARACTERS, CHARACTERS_PER_SECOND)
        self._tail = _Tail()
        self._pause = FIRST_PAUSE_SECONDS
        self._opens_at = -math.inf

    def let_through(self, lines: Iterable[Line], now: float) -> list[Line]:
        """Those of `lines` that may be shown now; of the others the newest are kept."""
        return [line for line in lines if self._passes(line, now)]

    def released(self, now: float, *, at_once: bool = False) -> list[Line]:
        """What was kept of a flood, once there is room for it again."""
        if not self._tail or not (at_once or now >= self._room_at(now)):
            return []
        tail = self._tail.taken()
        for line in tail:
            self._charge(line, now)
        return tail

    def deadline(self, now: float) -> float | None:
        """When `released` will have something; None while nothing is kept."""
        return self._room_at(now) if self._tail else None

    def _passes(self, line: Line, now: float) -> bool:
        if not line.ranks:
            return True
        if not self._tail and self._lines.left(now) >= 1 and self._characters.left(now) > 0:
            self._charge(line, now)
            return True
        if not self._tail:
            self._begin_flood(now)
        self.hidden += self._tail.add(line)
        return False

    def _charge(self, line: Line, now: float) -> None:
        self._lines.take(1, now)
        self._characters.take(len(line.text), now)

    def _begin_flood(self, now: float) -> None:
        calm = now - self._opens_at > LONGEST_PAUSE_SECONDS
        self._pause = FIRST_PAUSE_SECONDS if calm else min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._opens_at = now + self._pause
        self.hidden = 0

    def _room_at(self, now: float) -> float:
        lines = self._lines.when(len(self._tail), now)
        characters = self._characters.when(self._tail.characters, now)
        return max(self._opens_at, lines, characters)
