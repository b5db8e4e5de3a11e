"""Launch latency on two CPU ranks: first, later, back to back, and with nothing ready."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.harness import Check, Samples, Section, await_quiet, shuffled, turns
from benchmarks.kernel import CellFailed, Kernel
from benchmarks.peers import OURS, OURS_WITHOUT_SPARES, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer

__all__ = ["measure"]

_ROUNDS_A_KERNEL = 7
_IN_A_ROW = 5
_LIMIT_SECONDS = 60.0
_REST_SECONDS = 0.3
_IMPORT = "import torch"

_HEADER = (
    *("peer", "n", "first: proven", "first: returned", "later: proven", "later: returned"),
    *(f"returned / {REFERENCE.name}", "later: CPU", "in a row: returned", "cold: returned"),
)

_PROBE = """
def probe():
    import time
    entered = time.monotonic()
    join()
    import torch, torch.distributed as dist
    one = torch.ones(1)
    dist.all_reduce(one)
    proven = time.monotonic()
    assert one.item() == 2, one
    tell(entered=entered, proven=proven)
"""

_LAUNCH = """
cpu, begun = cpu_seconds(), time.monotonic()
launch(2, probe)
ended, cpu = time.monotonic(), cpu_seconds() - cpu
ranks = told(2)
answer(
    entered=max(rank["entered"] for rank in ranks) - begun,
    proven=max(rank["proven"] for rank in ranks) - begun,
    back=ended - begun,
    cpu=cpu,
)
"""

_BACK_TO_BACK = f"""
times = [time.monotonic()]
for _ in range({_IN_A_ROW}):
    launch(2, probe)
    times.append(time.monotonic())
answer(back=sorted(b - a for a, b in zip(times[1:], times[2:]))[{(_IN_A_ROW - 1) // 2}])
"""


def measure(peers: Sequence[Peer], repetitions: int) -> Section:
    """`repetitions` kernels per peer; in each, one first launch and some later ones."""
    samples = Samples()
    for number in range(repetitions):
        _take_turns([p for p in peers if not p.is_slow or number == 0], samples)
    for _ in range(repetitions):
        _import_torch(samples)
        for peer in shuffled(p for p in peers if p in (REFERENCE, OURS)):
            _launch_cold(peer, samples)
    return Section(
        "Launching",
        "Two CPU ranks, milliseconds, median (least). *proven*: until an all_reduce has shown, on "
        "the last rank, that both are in the function. *returned*: until the call returns. *CPU*: "
        "of the kernel, in the call. *in a row*: later launches without a pause in between. "
        "*cold*: import and first launch in a kernel's first cell.",
        _HEADER,
        [_row(peer.name, samples) for peer in peers] + [_import_row(samples)],
        _checks(samples),
    )


def _take_turns(peers: Sequence[Peer], samples: Samples) -> None:
    with ExitStack() as stack:
        kernels: dict[str, Kernel] = {}
        for peer in shuffled(peers):
            kernel = kernels[peer.name] = stack.enter_context(Kernel(peer))
            kernel.ask(_PROBE + "answer()")
            _sample(kernel, _LAUNCH, peer.name, "first", samples)
        for peer in turns(peers, _ROUNDS_A_KERNEL, slow_rounds=3):
            _sample(kernels[peer.name], _LAUNCH, peer.name, "later", samples)
        for peer in turns(peers, 2):
            _sample(kernels[peer.name], _BACK_TO_BACK, peer.name, "row", samples)


def _sample(kernel: Kernel, code: str, name: str, when: str, samples: Samples) -> None:
    if kernel.is_lost:
        return
    await_quiet()
    try:
        answer = kernel.ask(code, _LIMIT_SECONDS, rest=_REST_SECONDS)
    except CellFailed as failure:
        samples.fail(name, f"{when}_back", str(failure))
    else:
        samples.add(name, **{f"{when}_{what}": value for what, value in answer.items()})


def _launch_cold(peer: Peer, samples: Samples) -> None:
    with Kernel() as kernel:
        kernel.ask(_PROBE + "answer()")
        code = f"cold = time.monotonic()\n{peer.setup}{_LAUNCH}"
        _sample(kernel, f"{code}\nanswer(back=ended - cold)", peer.name, "cold", samples)


def _import_torch(samples: Samples) -> None:
    await_quiet()
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", _IMPORT], check=True, timeout=_LIMIT_SECONDS)
    samples.add(_IMPORT, cold_back=time.monotonic() - begun)


def _row(name: str, samples: Samples) -> list[str]:
    ratio = samples.ratio(name, "later_back", REFERENCE.name)
    counts = f"{samples.count(name, 'first_back')}/{samples.count(name, 'later_back')}"
    before = ("first_proven", "first_back", "later_proven", "later_back")
    return [
        name,
        counts,
        *(samples.text(name, quantity, 1e3) for quantity in before),
        "–" if ratio is None else f"{ratio:.3g}",
        *(samples.text(name, quantity, 1e3) for quantity in ("later_cpu", "row_back", "cold_back")),
    ]


def _import_row(samples: Samples) -> list[str]:
    cold = samples.text(_IMPORT, "cold_back", 1e3)
    return [f"*`python -c '{_IMPORT}'`*", *["–"] * 8, cold]


def _checks(samples: Samples) -> list[Check]:
    def against(quantity: str, peer: Peer = OURS) -> float | None:
        return samples.ratio(peer.name, quantity, REFERENCE.name)

    cpu = samples.median(OURS.name, "later_cpu")
    return [
        Check("later launch returns, spares", against("later_back"), 0.05, f"× {REFERENCE.name}"),
        Check(
            "later launch returns, no spares",
            against("later_back", OURS_WITHOUT_SPARES),
            0.2,
            f"× {REFERENCE.name}",
        ),
        Check("later launch, group proven", against("later_proven"), 0.1, f"× {REFERENCE.name}"),
        Check("first launch returns", against("first_back"), 0.2, f"× {REFERENCE.name}"),
        Check(
            "cold launch: torch's import and no more",
            samples.ratio(OURS.name, "cold_back", _IMPORT),
            1.0,
            f"× python -c '{_IMPORT}'",
        ),
        Check("kernel's CPU per launch", None if cpu is None else cpu * 1e3, 5.0, "ms"),
    ]
