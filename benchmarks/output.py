"""From a rank's print to the cell, while the function goes on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.harness import Check, Samples, Section, await_quiet, turns
from benchmarks.kernel import Kernel
from benchmarks.peers import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.kernel import Cell
    from benchmarks.peers import Peer

__all__ = ["measure"]

_LIMIT_SECONDS = 40.0
_MOST_MS = 5.0
_MOST_MS_OF_AN_OPEN_LINE = 50.0
_KINDS = {
    "print": "print",
    "open": 'print(end="")',
    "stderr": "stderr",
    "write": "os.write(1)",
    "printf": "C's printf",
}
_MARK = re.compile(r"<(\w+) ([\d.]+)>")

_PROBE = """
def probe():
    join()
    import ctypes, os, sys, time
    import torch.distributed as dist
    libc = ctypes.CDLL(None)
    def mark(kind):
        return f"<{kind} {time.monotonic():.6f}>"
    def say_open():
        print(mark("open"), end="")
        time.sleep(0.25)
        print()
    ways = (
        lambda: print(mark("print")),
        say_open,
        lambda: sys.stderr.write(mark("stderr") + "\\n"),
        lambda: os.write(1, (mark("write") + "\\n").encode()),
        lambda: libc.printf((mark("printf") + "\\n").encode()),
    )
    dist.barrier()
    for _ in range(5):
        for way in ways:
            way()
            time.sleep(0.06)
    time.sleep(0.5)
"""


def measure(peers: Sequence[Peer], repetitions: int) -> Section:
    """`repetitions` launches per peer, each with five marks of each kind from both ranks."""
    samples = Samples()
    peers = [p for p in peers if not p.launches_only]
    for peer in turns(peers, repetitions):
        with Kernel(peer) as kernel:
            kernel.ask(_PROBE + "answer()")
            await_quiet()
            _read_marks(peer.name, kernel.run("launch(2, probe)", _LIMIT_SECONDS), samples)
    return Section(
        "Output",
        "Milliseconds from the write in a rank to its arrival at the front end, two ranks that "
        "write different lines at the same time, median (least); *never*: not while the call ran.",
        ("peer", "n", *_KINDS.values()),
        [_row(peer.name, samples) for peer in peers],
        [
            Check("print to the cell", _ms(samples, "print"), _MOST_MS, "ms"),
            Check("os.write to the cell", _ms(samples, "write"), _MOST_MS, "ms"),
            Check("C's printf to the cell", _ms(samples, "printf"), _MOST_MS, "ms"),
            Check("print without a newline", _ms(samples, "open"), _MOST_MS_OF_AN_OPEN_LINE, "ms"),
        ],
    )


def _read_marks(name: str, cell: Cell, samples: Samples) -> None:
    for arrival, content in cell.heard:
        for kind, written in _MARK.findall(content):
            samples.add(name, **{kind: arrival - float(written)})


def _row(name: str, samples: Samples) -> list[str]:
    texts = [samples.text(name, kind, 1e3).replace("–", "never") for kind in _KINDS]
    return [name, str(samples.count(name, "print")), *texts]


def _ms(samples: Samples, kind: str) -> float | None:
    seconds = samples.median(OURS.name, kind)
    return None if seconds is None else seconds * 1e3
