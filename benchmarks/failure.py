"""From a rank's failure to the error in the cell, and whether it names the right rank."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.harness import Check, Samples, Section, await_quiet, shuffled
from benchmarks.kernel import CellFailed, Kernel
from benchmarks.peers import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.kernel import Cell
    from benchmarks.peers import Peer

__all__ = ["measure"]

_CULPRIT = 1
_LIMIT_SECONDS = 25.0
_FAILURES = ("raise", "exit", "kill", "leave")
_INTERRUPTS = ("interrupt", "stubborn")
_MOST_SECONDS = {**dict.fromkeys((*_FAILURES, "interrupt"), 0.3), "stubborn": 6.0}
_NAMED = re.compile(r"\b(?:rank|process)\b\s*:?\s*(\d+)", re.IGNORECASE)

# Rank 1 is at fault, rank 0 waits for it in a collective.
_PROBE = f"""
def probe(way):
    join()
    import os, signal, time
    import torch, torch.distributed as dist
    dist.barrier()
    if way == "stubborn":
        for number in signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}}:
            signal.signal(number, signal.SIG_IGN)
    tell(at=time.monotonic())
    if way in {_INTERRUPTS}:
        while True:
            time.sleep(0.01)
    time.sleep(0.2)
    if dist.get_rank() == {_CULPRIT}:
        tell(at=time.monotonic())
        if way == "raise":
            raise ValueError("a mistake")
        if way == "exit":
            os._exit(3)
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return
    dist.all_reduce(torch.ones(1))
"""


def measure(peers: Sequence[Peer], repetitions: int) -> Section:
    """`repetitions` rounds; in each, one kernel per peer that suffers every failure once."""
    samples = Samples()
    peers = [p for p in peers if not p.launches_only]
    for number in range(repetitions):
        for peer in shuffled(p for p in peers if not (number and p.is_slow)):
            _suffer(peer, samples)
    return Section(
        "Failures",
        "Seconds from the failure of rank 1, while rank 0 waits in an all_reduce, to the error in "
        "the cell; from the interrupt to a free kernel, for ranks that sleep in Python "
        "(*interrupt*) and for ranks that ignore every signal (*stubborn*); median (least). "
        "*named*: how often the first rank that the error speaks of was rank 1.",
        ("peer", *_FAILURES, *_INTERRUPTS, "named"),
        [_row(peer.name, samples) for peer in peers],
        [_check(way, samples) for way in (*_FAILURES, *_INTERRUPTS)],
    )


def _suffer(peer: Peer, samples: Samples) -> None:
    kernel = _opened(peer)
    try:
        for way in (*_FAILURES, *_INTERRUPTS):
            if samples.has_failed(peer.name, way):
                continue
            if not _sample(kernel, peer.name, way, samples):
                kernel.close()  # it hangs: the others get a fresh one
                kernel = _opened(peer)
    finally:
        kernel.close()


def _opened(peer: Peer) -> Kernel:
    kernel = Kernel(peer)
    kernel.ask(_PROBE + "answer()")
    return kernel


def _sample(kernel: Kernel, name: str, way: str, samples: Samples) -> bool:
    """Whether the kernel is free again."""
    await_quiet()
    interrupts: list[float] = []
    if way in _INTERRUPTS:
        threading.Thread(target=_interrupt, args=(kernel, interrupts), daemon=True).start()
    cell = kernel.run(f"launch(2, probe, {way!r})", _LIMIT_SECONDS)
    if cell.idle is None:
        samples.fail(name, way, f"hangs (> {_LIMIT_SECONDS:.0f} s)")
        return False
    try:
        ended = cell.idle if way in _INTERRUPTS else cell.error_at
        _take_down(name, way, cell, ended, interrupts or [_failed_at(kernel)], samples)
    except CellFailed as failure:
        samples.fail(name, way, str(failure))
    return True


def _take_down(
    name: str, way: str, cell: Cell, ended: float | None, began: list[float], samples: Samples
) -> None:
    if ended is None:
        raise CellFailed("no error")
    samples.add(name, **{way: ended - began[0]})
    if way in _FAILURES:
        named = _NAMED.search(cell.error)
        is_right = named is not None and int(named[1]) == _CULPRIT
        samples.add(name, **{f"{way} named": float(is_right), "named": float(is_right)})


def _failed_at(kernel: Kernel) -> float:
    return float(kernel.ask(f"answer(at=told(2)[{_CULPRIT}]['at'])")["at"])


def _interrupt(kernel: Kernel, interrupts: list[float]) -> None:
    """Half a second after both ranks are at work."""
    files = [kernel.folder / f"rank{rank}.json" for rank in range(2)]
    end = time.monotonic() + _LIMIT_SECONDS
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            return
        time.sleep(0.02)
    time.sleep(0.5)
    for file in files:
        file.unlink()
    interrupts.append(kernel.interrupt())


def _row(name: str, samples: Samples) -> list[str]:
    texts = [samples.text(name, way) for way in (*_FAILURES, *_INTERRUPTS)]
    share, count = samples.median(name, "named"), samples.count(name, "named")
    return [name, *texts, "–" if share is None else f"{samples.total(name, 'named'):.0f}/{count}"]


def _check(way: str, samples: Samples) -> Check:
    count = samples.count(OURS.name, f"{way} named")
    named = samples.total(OURS.name, f"{way} named") == count
    what = f"{way}, to the error, rank named" if way in _FAILURES else f"{way}, to a free kernel"
    return Check(what, samples.median(OURS.name, way), _MOST_SECONDS[way], "s", holds=named)
