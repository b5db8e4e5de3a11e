"""What the Accelerator costs in training, beside plain DDP, Accelerate and Fabric."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Check, Section, await_quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer

__all__ = ["CALLS", "measure"]

CALLS = ("is_main_process", "accumulate()", "autocast()", "a batch to the device it is on")

_LIMIT_SECONDS = 900
_ROOT = Path(__file__).parents[1]
_RIVALS = ("by hand", "nb_accelerate", "accelerate", "Fabric")
_OURS, _HAND, _THEIRS = "nb_accelerate", "by hand", "accelerate"
Medians = dict[str, dict[str, float]]


def measure(_peers: Sequence[Peer], repetitions: int) -> Section:
    """One process and two ranks; within each, the rivals take turns."""
    alone, together = _timed(1, 4 * repetitions), _timed(2, 4 * repetitions)
    alone["log, the run being watched"] = {_OURS: _log_microseconds()}
    rows = [
        (f"{quantity}, {ranks} rank{'s' if ranks > 1 else ''}", *_cells(found))
        for ranks, medians in ((1, alone), (2, together))
        for quantity, found in medians.items()
    ]
    return Section(
        "Training",
        "Microseconds, median of the repetitions, in turns within the same processes, one thread "
        "each. Steps on two ranks are CPU time, everything else is wall time.",
        ("what", *_RIVALS, "ours / by hand", "ours / accelerate"),
        rows,
        _checks(alone, together),
    )


def _timed(ranks: int, repeats: int) -> Medians:
    await_quiet()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": str(_ROOT), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    done = subprocess.run(
        [*command, "--nproc_per_node", str(ranks), "-m", "benchmarks.steps", str(repeats)],
        check=True, timeout=_LIMIT_SECONDS, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    times = json.loads(done.stdout.splitlines()[-1])
    return {
        quantity: {name: 1e6 * statistics.median(values) for name, values in found.items()}
        for quantity, found in times.items()
    }


def _log_microseconds() -> float:
    """Of one call, in both ranks of a launch."""
    from nb_accelerate import kill_all, notebook_launcher
    from nb_accelerate.ui.views import Recorder

    run = notebook_launcher(_log_while_computing, num_processes=2, hardware="cpu", view=Recorder())
    kill_all()
    return statistics.median(run.values)


def _log_while_computing() -> float:
    import torch

    from nb_accelerate import Accelerator

    accelerator, loss, layer = Accelerator(), torch.tensor(0.5), torch.nn.Linear(256, 256)
    times = []
    for _ in range(2000):
        layer(torch.ones(32, 256))
        begun = time.perf_counter()
        accelerator.log({"loss": loss})
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times)


def _cells(found: dict[str, float]) -> list[str]:
    figures = [f"{found[name]:.3g}" if name in found else "–" for name in _RIVALS]
    ratios = [_ratio(found, _HAND), _ratio(found, _THEIRS)]
    return [*figures, *("–" if ratio is None else f"{ratio:.3g}" for ratio in ratios)]


def _ratio(found: dict[str, float], reference: str) -> float | None:
    return found[_OURS] / found[reference] if reference in found else None


def _checks(alone: Medians, together: Medians) -> list[Check]:
    tiny = alone["step of an MLP, one process"]
    steps = [
        Check(quantity, _ratio(found, _HAND), 1.01, f"× {_HAND}, CPU")
        for quantity, found in together.items()
        if quantity.startswith(("step", "update"))
    ]
    gathered = _ratio(together["gather_for_metrics"], _THEIRS)
    goals = (
        ("batch of a table, indexed at once", 0.6),
        ("batch of a table, one by one", 1.1),
        ("batch of a stream", 1.2),
        ("batch of a table, one worker", 1.1),
    )
    return [
        Check("added to a step, one process", tiny[_OURS] - tiny[_HAND], 10, "µs"),
        *steps,
        Check("gather_for_metrics", gathered, 0.7, f"× {_THEIRS}"),
        Check("log", alone["log, the run being watched"][_OURS], 5, "µs"),
        *(Check(name, _ratio(alone[name], _THEIRS), 1, f"× {_THEIRS}") for name in CALLS),
        *(Check(name, _ratio(together[name], _HAND), most, f"× {_HAND}") for name, most in goals),
    ]
