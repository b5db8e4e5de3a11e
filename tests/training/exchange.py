"""Trainings by Accelerate or by this package: exchange.py LIBRARY JOBS.

JOBS is a JSON list. {"save": path} trains 3 batches, saves in the midst of an epoch and trains on;
{"load": path} loads and trains what was left, as code for Accelerate does it. Each job names the
"ranks" that do it, and a "folder" where each writes what it has seen, to rank<N>.json.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LEFT_AFTER = 3


class Count:
    def __init__(self) -> None:
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state) -> None:
        self.value = state["value"]


class Net(nn.Module):
    """With tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def library(name: str):
    if name == "accelerate":
        import accelerate

        return accelerate.Accelerator, accelerate.DataLoaderConfiguration
    from nb_accelerate.training import Accelerator, DataLoaderConfiguration

    return Accelerator, DataLoaderConfiguration


def run(name: str, order: dict, rank: int) -> dict:
    accelerator_type, configuration = library(name)
    torch.manual_seed(1 if "save" in order else 2)
    accelerator = accelerator_type(
        cpu=True, gradient_accumulation_steps=order.get("accumulation", 1),
        dataloader_config=configuration(
            use_seedable_sampler=True, data_seed=7,
            use_stateful_dataloader=order.get("stateful", False),
        ),
    )  # fmt: skip
    model, other = Net(), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    second = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)
    own = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(36, 4, generator=own))
    loader = DataLoader(data, batch_size=3, shuffle=True)
    count = Count()
    accelerator.register_for_checkpointing(count)
    model, other, optimizer, second, schedule, loader = accelerator.prepare(
        model, other, optimizer, second, schedule, loader
    )
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)

    def step(batch):
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(batch), torch.ones_like(batch))
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        count.value += 1
        return loss.item()

    seen = {"losses": []}
    if "load" in order:
        accelerator.load_state(order["load"])
        seen |= states(accelerator, model, other, optimizer, second, schedule)
        if order.get("stateful"):  # the loader knows what is left
            rest = enumerate(loader, LEFT_AFTER)
        else:
            loader.set_epoch(0)
            rest = enumerate(loader)
    else:
        other(torch.ones(2)).sum().backward()
        second.step()
        rest = enumerate(loader)
    for number, (batch,) in rest:
        if "load" in order and number < LEFT_AFTER:
            continue
        seen["losses"].append(step(batch))
        if "save" in order and number == LEFT_AFTER - 1:
            accelerator.save_state(order["save"], safe_serialization=order.get("safe", True))
            seen |= states(accelerator, model, other, optimizer, second, schedule)
            seen["losses"] = []
    return seen | {"count": count.value, "final": plain(model.state_dict()),
                   "final rate": schedule.get_last_lr()}  # fmt: skip


def states(accelerator, model, other, optimizer, second, schedule) -> dict:
    """All that must be equal after loading; draws random numbers."""
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seen = {
        "weights": plain(accelerator.unwrap_model(model).state_dict()),
        "other": plain(accelerator.unwrap_model(other).state_dict()),
        "optimizer": plain(optimizer.state_dict()),
        "second": plain(second.state_dict()),
        "schedule": plain(schedule.state_dict()),
        "random": [random.random(), float(np.random.rand()), torch.rand(3).tolist()],
        "step": accelerator.step,
    }  # fmt: skip
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    torch.set_rng_state(generators[2])
    return seen


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(k).removeprefix("module."): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, int | float | str | bool | type(None)) else str(type(value))


def be_rank(name: str, rank: int, world_size: int, folder: Path, order: dict) -> None:
    torch.set_num_threads(1)
    if world_size > 1:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
        }  # fmt: skip
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=10)
        )
    if name == "accelerate":
        seen = run(name, order, rank)
    else:
        from nb_accelerate.replica import Replica, acting_as

        place = Replica(
            rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size
        )
        with acting_as(place, whole_process=True):
            seen = run(name, order, rank)
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    if world_size > 1:
        dist.destroy_process_group()


def do(name: str, job: dict) -> None:
    fork = multiprocessing.get_context("fork")
    folder = Path(job["folder"])
    folder.mkdir(parents=True)
    ranks = [
        fork.Process(target=be_rank, args=(name, rank, job["ranks"], folder, job))
        for rank in range(job["ranks"])
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    # Once, for all ranks are forked from here. Optimizers import _dynamo when they are made.
    importlib.import_module("torch._dynamo")
    library(sys.argv[1])
    for one in json.loads(sys.argv[2]):
        do(sys.argv[1], one)
