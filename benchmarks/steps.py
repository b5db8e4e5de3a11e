"""Times the rivals within ranks: python -m torch.distributed.run … benchmarks/steps.py REPEATS.

Rank 0 prints one JSON object: {quantity: {rival: [seconds of each repetition, per unit]}}.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.rivals import (
    MODELS,
    RIVALS,
    ROWS,
    BatchedTable,
    Reading,
    Rival,
    Stream,
    Table,
    as_it_is,
)
from benchmarks.training import CALLS

if TYPE_CHECKING:
    from collections.abc import Callable

Times = dict[str, dict[str, list[float]]]


def main() -> None:
    """Measure all that this number of ranks can show."""
    repeats = int(sys.argv[1])
    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    times: Times = {}
    for quantity, clock, count, per, makers in _quantities():
        actions = {name: make() for name, make in makers.items()}
        times[quantity] = _in_turns(actions, clock, count, per, repeats)
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(times))
    sys.stdout.flush()
    os._exit(0)  # the groups' threads of three libraries need not be taken apart


Quantity = tuple[str, "Callable[[], float]", int, int, dict[str, "Callable[[], Any]"]]


def _quantities() -> list[Quantity]:
    """(name, clock, runs per repetition, units per run, {rival: what makes the action})."""
    alone = int(os.environ["WORLD_SIZE"]) == 1
    if alone:
        tiny = _of(lambda rival: lambda: rival.step("MLP"))
        step = ("step of an MLP, one process", time.perf_counter, 200, 1, tiny)
        return [step, *_calls(), *_loaders()]
    found: list[Quantity] = [
        (f"step of a {kind}", time.process_time, 60, 1, _of(lambda r, k=kind: lambda: r.step(k)))
        for kind in MODELS
    ]
    found.append(
        ("update of an MLP over 4 micro-batches", time.process_time, 40, 1,
         _of(lambda rival: rival.accumulating and (lambda: rival.accumulating("MLP"))))
    )  # fmt: skip
    found.append(("gather_for_metrics", time.perf_counter, 50, 1, _of(lambda rival: rival.gather)))
    return found + _loaders()


def _calls() -> list[Quantity]:
    return [
        (name, time.perf_counter, 2000, 1,
         _of(lambda rival, n=name: rival.calls and (lambda: rival.calls()[n])))
        for name in CALLS
    ]  # fmt: skip


def _loaders() -> list[Quantity]:
    readings = {
        "batch of a table, indexed at once": Reading(BatchedTable(), 0, as_it_is, plain=Table()),
        "batch of a table, one by one": Reading(Table()),
        "batch of a stream": Reading(Stream()),
        "batch of a table, one worker": Reading(Table(), workers=1),
    }
    batches = ROWS // 32 // int(os.environ["WORLD_SIZE"])
    return [
        (name, time.perf_counter, 1, batches,
         _of(lambda rival, r=reading: rival.epoch and (lambda: rival.epoch(r))))
        for name, reading in readings.items()
    ]  # fmt: skip


def _of(choose: Callable[[Rival], Callable[[], Any] | None]) -> dict[str, Callable[[], Any]]:
    makers = {name: choose(rival) for name, rival in RIVALS.items()}
    return {name: make for name, make in makers.items() if make is not None}


def _in_turns(
    actions: dict[str, Callable[[], Any]],
    clock: Callable[[], float],
    count: int,
    per: int,
    repeats: int,
) -> dict[str, list[float]]:
    order = random.Random(0)  # alike on all ranks, for their actions meet
    found: dict[str, list[float]] = {name: [] for name in actions}
    for repetition in range(repeats + 1):
        for name in order.sample(list(actions), len(actions)):
            begun = clock()
            for _ in range(count):
                actions[name]()
            if repetition:  # the first warms up
                found[name].append((clock() - begun) / count / per)
    return found


if __name__ == "__main__":
    main()
