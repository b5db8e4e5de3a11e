"""The end of a rank: what the user waits for, and what would be lost by not waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness import Check, Samples, Section, await_quiet, turns
from benchmarks.kernel import CellFailed, Kernel
from benchmarks.peers import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer

__all__ = ["measure"]

_ROUNDS = 4
_LIMIT_SECONDS = 60.0
_MOST_MS = 100.0
_PROMISES = {"file": "open file", "exit": "atexit", "thread": "thread"}

# A function that has trained a little, and leaves a file, an exit function and a thread behind.
_PROBE = """
def probe():
    join()
    import atexit, os, threading, time
    import torch, torch.distributed as dist
    rank = dist.get_rank()
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    dist.barrier()
    probe.kept = open(f"file{rank}", "w")
    probe.kept.write("kept")
    def write(name):
        with open(f"{name}{rank}", "w") as file:
            file.write("kept")
    atexit.register(write, "exit")
    threading.Timer(0.01, write, ("thread",)).start()
    tell(done=time.monotonic())
"""

_LAUNCH = f"""
launch(2, probe)
ended = time.monotonic()
end = ended - max(rank["done"] for rank in told(2))
kept = {{}}
for name in {tuple(_PROMISES)}:
    paths = [f"{{name}}{{rank}}" for rank in range(2)]
    kept[name] = all(os.path.exists(p) and open(p).read() == "kept" for p in paths)
    for path in filter(os.path.exists, paths):
        os.remove(path)
answer(end=end, **kept)
"""


def measure(peers: Sequence[Peer], repetitions: int) -> Section:
    """`repetitions` kernels per peer in turn, and some launches in each."""
    samples = Samples()
    peers = [p for p in peers if not p.launches_only]
    for peer in turns(peers, repetitions):
        with Kernel(peer) as kernel:
            kernel.ask(_PROBE + "answer()")
            _sample(kernel, peer.name, samples)
    return Section(
        "The end of a rank",
        "Milliseconds from the last statement of the function (a tiny training step on two ranks) "
        "to the return of the call, median (least), and how often it was there when the call "
        "returned: what the function wrote to a file and did not flush or close, what it "
        "registered with atexit, what a thread of its own wrote 10 ms later.",
        ("peer", "n", "end", *_PROMISES.values()),
        [_row(peer.name, samples) for peer in peers],
        [_check(samples)],
    )


def _sample(kernel: Kernel, name: str, samples: Samples) -> None:
    for _ in range(_ROUNDS):
        if samples.has_failed(name, "end"):
            return
        await_quiet()
        try:
            samples.add(name, **kernel.ask(_LAUNCH, _LIMIT_SECONDS))
        except CellFailed as failure:
            samples.fail(name, "end", str(failure))


def _kept(name: str, promise: str, samples: Samples) -> str:
    count = samples.count(name, promise)
    return f"{samples.total(name, promise):.0f}/{count}" if count else "–"


def _row(name: str, samples: Samples) -> list[str]:
    kept = [_kept(name, promise, samples) for promise in _PROMISES]
    return [name, str(samples.count(name, "end")), samples.text(name, "end", 1e3), *kept]


def _check(samples: Samples) -> Check:
    end = samples.median(OURS.name, "end")
    all_kept = all(samples.total(OURS.name, p) == samples.count(OURS.name, p) for p in _PROMISES)
    figure = None if end is None else end * 1e3
    return Check("end of a rank, nothing lost", figure, _MOST_MS, "ms", holds=all_kept)
