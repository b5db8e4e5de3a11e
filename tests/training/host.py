"""Runs the `check_` functions of a file on several ranks: host.py CHECKS WORLD_SIZE FOLDER.

One interpreter imports torch once, computes nothing, and forks the ranks. Each rank runs all checks
in their order and writes {check: traceback or ""} to FOLDER/rank<N>.json. A check that fails ends
its rank, for the others would wait for it: the rest is not run.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nb_accelerate.replica import Replica, acting_as

PATIENCE = timedelta(seconds=20)


class Recorder:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.records = []
        self.steps = []
        self.stop = False

    def metrics(self, values, step) -> None:
        self.records.append((dict(values), step))

    def progress(self, description, done, total, *, finished) -> None:
        self.steps.append((description, done, total, finished))

    def should_stop(self) -> bool:
        return self.stop


def load(path: Path):
    sys.path.insert(0, str(path.parent))  # checks may share what lies beside them
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that what it defines can be pickled
    spec.loader.exec_module(module)
    return module


def run_rank(rank: int, world_size: int, folder: Path, checks) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=PATIENCE)
    replica = Replica(
        rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size,
        device="cpu", reporter=Recorder(),
    )  # fmt: skip
    verdicts = {}
    with acting_as(replica, whole_process=True):
        for name, check in checks:
            verdicts[name] = verdict(check)
            if verdicts[name]:
                break
    (folder / f"rank{rank}.json").write_text(json.dumps(verdicts))
    dist.destroy_process_group()


def verdict(check) -> str:
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""


def main(path: Path, world_size: int, folder: Path) -> None:
    module = load(path)
    checks = [(name, f) for name, f in vars(module).items() if name.startswith("check_")]
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=run_rank, args=(rank, world_size, folder, checks))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
