"""A GiB that the function closes over: how long until every rank has it, and at what memory."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import psutil

from benchmarks.harness import Check, Samples, Section, await_quiet
from benchmarks.kernel import CellFailed, Kernel
from benchmarks.peers import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer

__all__ = ["measure"]

_RANKS = (2, 4)
_LIMIT_SECONDS = 90.0
# Peers that pickle hold the pickle and the array in each rank.
_GIB_NEEDED_A_RANK = 3.0
_GIB_NEEDED = 4.0
_MOST_PRIVATE_MB = 20.0

# Made by the kernel's own threads, as arrays are.
_ARRAYS = {
    "numpy": "import numpy\nbig = numpy.ones(1 << 28, dtype=numpy.float32)\ncopied = numpy.copy",
    "torch": "import torch\nbig = torch.ones(1 << 28)\ncopied = torch.clone",
}

_PROBE = """
def probe_of(array):
    def probe():
        import time
        entered = time.monotonic()
        join()
        total = float(array.sum())
        read = time.monotonic()
        import torch, torch.distributed as dist
        one = torch.ones(1)
        dist.all_reduce(one)
        with open("/proc/self/smaps_rollup") as file:
            lines = [line.split() for line in file if line.startswith("Private_")]
        dist.all_reduce(one)
        tell(entered=entered, read=read, private=sum(int(line[1]) for line in lines) * 1024)
    return probe
"""

# The first copy is not timed: a virtual machine may have to get that memory from its host.
_LAUNCH = """
copied(big)
times = []
for _ in range(3):
    begun = time.monotonic()
    fresh = copied(big)
    times.append(time.monotonic() - begun)
    del fresh
launch({ranks}, probe_of(copied(big[:1])))
before = max(rank["private"] for rank in told({ranks}))
begun = time.monotonic()
launch({ranks}, probe_of(big))
ranks = told({ranks})
answer(
    entered=max(rank["entered"] for rank in ranks) - begun,
    read=max(rank["read"] for rank in ranks) - begun,
    private=max(rank["private"] for rank in ranks) - before,
    copy=sorted(times)[1],
)
"""


def measure(peers: Sequence[Peer], repetitions: int) -> Section:
    """`repetitions` kernels per peer and kind of array; 2 ranks, then 4, in each."""
    samples = Samples()
    peers = [p for p in peers if not p.launches_only]
    for number in range(repetitions):
        pairs = list(itertools.product((p for p in peers if not (number and p.is_slow)), _ARRAYS))
        random.shuffle(pairs)
        for peer, kind in pairs:
            _take_turn(peer, kind, samples)
    columns = list(itertools.product(_ARRAYS, _RANKS))
    return Section(
        "Shipping 1 GiB",
        "A closure over 1 GiB of float32; seconds from the call, median (least). *there*: until "
        "the function runs on the last rank; *read*: until every rank has summed the array; "
        "*private*: what that adds to a rank's private memory, in MB; *copy*: a fresh copy in the "
        "kernel, page faults included, just before. torch makes its array with the kernel's "
        "OpenMP threads: some forked ranks hang after that.",
        ("peer", "array", "ranks", "n", "copy", "there", "there / copy", "read", "private MB"),
        [_row(peer.name, kind, ranks, samples) for peer in peers for kind, ranks in columns],
        [check for kind, ranks in columns for check in _checks(kind, ranks, samples)],
    )


def _take_turn(peer: Peer, kind: str, samples: Samples) -> None:
    if all(samples.has_failed(peer.name, _named(kind, ranks, "entered")) for ranks in _RANKS):
        return
    with Kernel(peer) as kernel:
        kernel.ask(f"{_ARRAYS[kind]}\n{_PROBE}\nanswer()")
        for ranks in _RANKS:
            if not _sample(kernel, peer, kind, ranks, samples):
                return


def _sample(kernel: Kernel, peer: Peer, kind: str, ranks: int, samples: Samples) -> bool:
    """Whether the kernel can go on."""
    free = psutil.virtual_memory().available / 2**30
    if peer.is_slow and free < _GIB_NEEDED + ranks * _GIB_NEEDED_A_RANK:
        samples.fail(peer.name, _named(kind, ranks, "entered"), "too little free memory to try")
        return True
    await_quiet()
    try:
        answer = kernel.ask(_LAUNCH.format(ranks=ranks), _LIMIT_SECONDS)
    except CellFailed as failure:
        for never in itertools.dropwhile(lambda n: n != ranks, _RANKS):
            samples.fail(peer.name, _named(kind, never, "entered"), str(failure))
        return False
    samples.add(peer.name, **{_named(kind, ranks, what): v for what, v in answer.items()})
    return True


def _named(kind: str, ranks: int, what: str) -> str:
    return f"{kind} {ranks} {what}"


def _ratio(name: str, kind: str, ranks: int, samples: Samples) -> float | None:
    there = samples.median(name, _named(kind, ranks, "entered"))
    copy = samples.median(name, _named(kind, ranks, "copy"))
    return there / copy if there is not None and copy else None


def _row(name: str, kind: str, ranks: int, samples: Samples) -> list[str]:
    def text(what: str, scale: float = 1.0) -> str:
        return samples.text(name, _named(kind, ranks, what), scale)

    ratio = _ratio(name, kind, ranks, samples)
    count = samples.count(name, _named(kind, ranks, "entered"))
    relative = "–" if ratio is None else f"{ratio:.2f}"
    first = [name, kind, str(ranks), str(count), text("copy"), text("entered"), relative]
    return [*first, text("read"), text("private", 1e-6)]


def _checks(kind: str, ranks: int, samples: Samples) -> list[Check]:
    private = samples.median(OURS.name, _named(kind, ranks, "private"))
    what = f"1 GiB of {kind} to {ranks} ranks"
    return [
        Check(f"{what}: there", _ratio(OURS.name, kind, ranks, samples), 2.0, "× a fresh copy"),
        Check(
            f"{what}: private per rank",
            None if private is None else private / 1e6,
            _MOST_PRIVATE_MB,
            "MB",
        ),
    ]
