"""Fair turns, medians, targets and tables."""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.peers import Peer

__all__ = ["Check", "Samples", "Section", "await_quiet", "machine", "shuffled", "summary", "turns"]

_QUIET_PERCENT = 30.0
_LONGEST_WAIT_SECONDS = 4.0
_COMPARED = ("torch", "accelerate", "lightning-fabric", "torchrunx", "ipykernel", "nb_accelerate")


# ---------------------------------------------------------------- turns
def shuffled(peers: Iterable[Peer]) -> list[Peer]:
    """In an order of their own each time."""
    order = list(peers)
    random.shuffle(order)
    return order


def turns(peers: Sequence[Peer], rounds: int, *, slow_rounds: int = 1) -> Iterator[Peer]:
    """Everyone once a round, in an order shuffled anew; who is slow, in the first rounds only."""
    for number in range(rounds):
        yield from shuffled(p for p in peers if not p.is_slow or number < slow_rounds)


def await_quiet() -> None:
    """Wait a while for a moment in which others leave most of the cores idle."""
    end = time.monotonic() + _LONGEST_WAIT_SECONDS
    while psutil.cpu_percent(interval=0.2) > _QUIET_PERCENT and time.monotonic() < end:
        pass


# ---------------------------------------------------------------- figures
class Samples:
    """Measured values by peer and quantity, and what failed."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._complaints: dict[tuple[str, str], str] = {}

    def add(self, peer: str, **values: float) -> None:
        """Take down one value of each quantity."""
        for quantity, value in values.items():
            self._values[peer, quantity].append(value)

    def fail(self, peer: str, quantity: str, complaint: str) -> None:
        """Take down that there is no value, and why."""
        self._complaints[peer, quantity] = complaint[:60]

    def has_failed(self, peer: str, quantity: str) -> bool:
        """Whether it failed at least once."""
        return (peer, quantity) in self._complaints

    def median(self, peer: str, quantity: str) -> float | None:
        """None without a value."""
        values = self._values[peer, quantity]
        return statistics.median(values) if values else None

    def total(self, peer: str, quantity: str) -> float:
        """The sum of the values."""
        return sum(self._values[peer, quantity])

    def count(self, peer: str, quantity: str) -> int:
        """The number of values."""
        return len(self._values[peer, quantity])

    def ratio(self, peer: str, quantity: str, reference: str) -> float | None:
        """Of medians; None without both."""
        ours, theirs = self.median(peer, quantity), self.median(reference, quantity)
        return ours / theirs if ours is not None and theirs else None

    def text(self, peer: str, quantity: str, scale: float = 1.0) -> str:
        """The median (and least) for a table, or what failed instead."""
        values = [scale * value for value in self._values[peer, quantity]]
        failed = self._complaints.get((peer, quantity), "")
        if not values:
            return failed or "–"
        text = f"{statistics.median(values):.3g} ({min(values):.3g})"
        return f"{text}; once: {failed}" if failed else text


@dataclass(frozen=True, slots=True)
class Check:
    """A figure beside its target: at most so much."""

    what: str
    figure: float | None
    most: float
    unit: str = ""
    holds: bool = True
    """Any further condition that the target has."""

    @property
    def passes(self) -> bool:
        """Whether the target is met."""
        return self.holds and self.figure is not None and self.figure <= self.most

    def row(self) -> tuple[str, str, str, str]:
        """For the table of targets."""
        figure = "–" if self.figure is None else f"{self.figure:.3g} {self.unit}"
        verdict = "pass" if self.passes else "**FAIL**"
        return self.what, figure, f"≤ {self.most:g} {self.unit}", verdict


@dataclass(frozen=True, slots=True)
class Section:
    """One measurement's table and targets."""

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    checks: Sequence[Check] = ()
    load: tuple[float, float] = field(default=(0.0, 0.0))
    """The machine's load average (1 min) before and after."""

    def markdown(self) -> str:
        """The section without its targets."""
        before, after = self.load
        head = f"## {self.title}\n\n{self.note} Load {before:.1f} to {after:.1f}.\n"
        return f"{head}\n{_table(self.header, self.rows)}\n"


def summary(sections: Sequence[Section]) -> str:
    """All targets in one table."""
    rows = [check.row() for section in sections for check in section.checks]
    return f"{_table(('what', 'measured', 'target', 'verdict'), rows)}\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


# ---------------------------------------------------------------- the machine
def machine() -> str:
    """What this was measured on, in a sentence."""
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return (
        f"{_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, {system}; "
        f"{', '.join(filter(None, map(_release, _COMPARED)))}; {time.strftime('%Y-%m-%d')}; "
        f"load {os.getloadavg()[0]:.1f} at the start"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor()


def _release(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
