"""What an import costs, each in a fresh interpreter."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.harness import Check, Samples, Section, await_quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer

__all__ = ["measure"]

_OURS = ("import nb_accelerate", "from nb_accelerate import notebook_launcher")
_STATEMENTS = (
    *_OURS,
    "import torch",
    "from accelerate import notebook_launcher",
    "from lightning_fabric import Fabric",
    "import torchrunx",
)
_MOST_CPU_MS = 60.0

_PROGRAM = """
import json, sys, time
before, began, cpu = len(sys.modules), time.perf_counter(), time.process_time()
{statement}
cpu, wall = time.process_time() - cpu, time.perf_counter() - began
modules = len(sys.modules) - before
print(json.dumps(dict(cpu=cpu, wall=wall, modules=modules, torch="torch" in sys.modules)))
"""


def measure(_peers: Sequence[Peer], repetitions: int) -> Section:
    """Two imports of each per repetition, after one that warms the file cache."""
    samples = Samples()
    for statement in _STATEMENTS:
        _import(statement)
    for _ in range(2 * repetitions):
        for statement in random.sample(_STATEMENTS, len(_STATEMENTS)):
            await_quiet()
            samples.add(statement, **_import(statement))
    return Section(
        "Imports",
        "The statement alone, in a fresh interpreter outside a kernel, median (least).",
        ("statement", "n", "CPU ms", "wall ms", "modules", "torch"),
        [_row(statement, samples) for statement in _STATEMENTS],
        [_check(statement, samples) for statement in _OURS],
    )


def _import(statement: str) -> dict[str, float]:
    program = _PROGRAM.format(statement=statement)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    values: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return values


def _row(statement: str, samples: Samples) -> list[str]:
    return [
        f"`{statement}`",
        str(samples.count(statement, "cpu")),
        samples.text(statement, "cpu", 1e3),
        samples.text(statement, "wall", 1e3),
        f"{samples.median(statement, 'modules'):.0f}",
        "yes" if samples.median(statement, "torch") else "no",
    ]


def _check(statement: str, samples: Samples) -> Check:
    cpu, torch = samples.median(statement, "cpu"), samples.median(statement, "torch")
    figure = None if cpu is None else cpu * 1e3
    return Check(f"`{statement}`, no torch", figure, _MOST_CPU_MS, "ms CPU", holds=not torch)
