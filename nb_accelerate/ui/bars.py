"""How far loops are: those of `accelerator.track`, and the bars that a rank prints itself."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nb_accelerate.record import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nb_accelerate.messages import Output, Progress, Stream

__all__ = ["PrintedBar", "PrintedBars", "Track", "clock_text"]

WINDOW_SAMPLES, SAMPLE_SECONDS = 30, 1.0
"""A rate is that of the last half minute."""
MOST_BARS = 32

_BAR = re.compile(r"(?P<name>.*?)(?:: )? *(?P<percent>\d+)%\|[^|]*\| *\S+/(?P<total>\S+)")
"""As tqdm draws it, such as "epoch 3:  10%|█     | 10/100 [00:01<00:09,  9.8it/s]"."""
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?")


def clock_text(seconds: float) -> str:
    """Such as "00:12" or "1:02:03"."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


class Track:
    """One loop over all ranks that walk through it: as far as the last of them."""

    def __init__(self) -> None:
        self._ranks: dict[int, Progress] = {}
        self._began: dict[int, float] = {}
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW_SAMPLES)
        self._now = 0.0

    def take(self, progress: Progress) -> None:
        """Take the next word of a rank; a loop that begins again counts anew."""
        before = self._ranks.get(progress.rank)
        if before is None or progress.done < before.done or before.finished > progress.finished:
            self._began[progress.rank] = progress.time
        self._ranks[progress.rank] = progress
        self._now = max(self._now, progress.time)
        if self._samples and self.done < self._samples[-1][1]:
            self._samples.clear()
        if not self._samples or self._now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((self._now, self.done))

    @property
    def finished(self) -> bool:
        """All ranks that began have come to the end."""
        return all(progress.finished for progress in self._ranks.values())

    @property
    def done(self) -> int:
        """Steps that the last of the ranks has done; of those that have ended, the most."""
        under_way = [each.done for each in self._ranks.values() if not each.finished]
        return min(under_way) if under_way else max(each.done for each in self._ranks.values())

    @property
    def total(self) -> int | None:
        """Steps in all; None when a rank does not know."""
        totals = [each.total for each in self._ranks.values()]
        known = [total for total in totals if total is not None]
        return max(known) if len(known) == len(totals) else None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None when the total is not known."""
        if self.finished:
            return 1.0
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def by_rank(self) -> dict[int, int]:
        """Steps done."""
        return {rank: each.done for rank, each in sorted(self._ranks.items())}

    def text(self) -> str:
        """Such as "120/500 00:12 < 00:38, 9.8 it/s"."""
        elapsed = self._now - min(self._began.values())
        rate = self._rate(elapsed)
        parts = [
            f"{self.done}{'' if self.total is None else f'/{self.total}'} {clock_text(elapsed)}"
        ]
        if rate and self.total and not self.finished:
            parts.append(f" < {clock_text((self.total - self.done) / rate)}")
        if rate:
            parts.append(f", {rate:.1f} it/s" if rate >= 1 else f", {1 / rate:.1f} s/it")
        return "".join(parts)

    def _rate(self, elapsed: float) -> float:
        """Steps per second, lately; on the whole once it is over."""
        since, done = self._samples[0]
        if self.finished or self._now <= since:
            return self.done / elapsed if elapsed > 0 else 0.0
        return (self.done - done) / (self._now - since)


@dataclass(frozen=True, slots=True)
class PrintedBar:
    """A line that a rank overwrites again and again."""

    rank: int
    text: str
    fraction: float | None
    """From 0 to 1, when the line tells."""


class _Key(NamedTuple):
    """What tells the bars of a rank apart.

    Names change from step to step ("loss 0.31"), so their numbers do not count.
    """

    name: str
    total: str


_ANY_LINE = _Key("", "")
"""Of a line that is overwritten and is not drawn like a bar."""


class PrintedBars:
    """The bars that stand on each rank's terminal, as far as its output tells."""

    def __init__(self) -> None:
        self._bars: dict[tuple[int, Stream], dict[_Key, PrintedBar]] = {}

    def __iter__(self) -> Iterator[PrintedBar]:
        for _, bars in sorted(self._bars.items()):
            yield from bars.values()

    def __len__(self) -> int:
        return sum(map(len, self._bars.values()))

    def take(self, output: Output) -> bool:
        """Take a piece of output; tell whether it changed a bar."""
        at = (output.rank, output.stream)
        if output.ending == "\r":
            return self._overwrite(at, plain(output.text))
        bars = self._bars.get(at)
        if not bars or not output.ending:
            return False
        key, _ = _parsed(plain(output.text))
        return any(bars.pop(each, None) is not None for each in (key, _ANY_LINE))

    def leave(self, rank: int) -> None:
        """A rank has ended, and its bars with it."""
        self._bars.pop((rank, "stdout"), None)
        self._bars.pop((rank, "stderr"), None)

    def _overwrite(self, at: tuple[int, Stream], text: str) -> bool:
        bars = self._bars.setdefault(at, {})
        if not text.strip():  # an erased bar: the one that was drawn last
            if bars:
                bars.popitem()
            return True
        key, fraction = _parsed(text)
        if key.name:  # tqdm draws a bar before it is given its name
            bars.pop(_Key("", key.total), None)
        bars[key] = PrintedBar(at[0], text.strip(), fraction)
        if len(bars) > MOST_BARS:
            del bars[next(iter(bars))]
        return True


def _parsed(text: str) -> tuple[_Key, float | None]:
    match = _BAR.match(text)
    if match is None:
        return _ANY_LINE, None
    name = _NUMBER.sub("#", match["name"])
    return _Key(name, match["total"]), int(match["percent"]) / 100
