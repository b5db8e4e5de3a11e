"""A training that can be left after any step and taken up again: how both must be the same."""

from __future__ import annotations

import random
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nb_accelerate.training import Accelerator, DataLoaderConfiguration, set_seed

EPOCHS = 2
BATCH = 3


@dataclass(frozen=True)
class Route:
    """One way to train; `samples` leave a short batch and a short window at the end."""

    samples: int = 19
    accumulation: int = 2
    sampler: str = "shuffle"  # or "generator", "seedable", "in order"
    safe: bool = True


class Diary:
    """A custom object: how far the training is, and a running mean."""

    def __init__(self) -> None:
        self.epoch = 0
        self.mean = torch.zeros(())

    def state_dict(self) -> dict:
        return vars(self).copy()

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)


@dataclass
class Trip:
    """A training under way, with all that is compared."""

    route: Route
    seed: int = 0
    steps: list[tuple] = field(default_factory=list)

    def __post_init__(self) -> None:
        set_seed(self.seed, device_specific=True)
        route = self.route
        self.accelerator = Accelerator(
            gradient_accumulation_steps=route.accumulation,
            dataloader_config=DataLoaderConfiguration(
                use_seedable_sampler=route.sampler == "seedable", data_seed=5
            ),
        )
        torch.manual_seed(self.seed)  # the model, and the order of a shuffle
        model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        self.diary = Diary()
        self.accelerator.register_for_checkpointing(self.diary)
        prepared = self.accelerator.prepare(
            model, optimizer, schedule, self._loader(), DataLoader(dataset(7), batch_size=2)
        )
        self.model, self.optimizer, self.schedule, self.loader, self.evaluation = prepared
        set_seed(self.seed, device_specific=True)

    def _loader(self) -> DataLoader:
        generator = torch.Generator().manual_seed(3) if self.route.sampler == "generator" else None
        return DataLoader(
            dataset(self.route.samples), batch_size=BATCH, generator=generator,
            shuffle=self.route.sampler != "in order",
        )  # fmt: skip

    def go(self, after_step=lambda trip: None, after_epoch=lambda trip: None) -> Trip:
        while self.diary.epoch < EPOCHS:
            for ids, x, y in self.loader:
                self._step(ids, x, y)
                after_step(self)
            self.diary.epoch += 1
            with torch.no_grad():
                self.steps.append(tuple(self.model(x).sum().item() for _, x, _ in self.evaluation))
            after_epoch(self)
        return self

    def _step(self, ids, x, y) -> None:
        with self.accelerator.accumulate(self.model):
            loss = F.mse_loss(self.model(x), y)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        together = self.accelerator.reduce(loss.detach(), "mean")
        self.diary.mean = 0.9 * self.diary.mean + together
        drawn = random.random(), np.random.rand(), torch.rand(()).item()
        rate = self.schedule.get_last_lr()[0]
        self.steps.append((ids.tolist(), loss.item(), rate, self.diary.mean.item(), drawn))

    def save(self, folder) -> None:
        self.accelerator.save_state(folder, safe_serialization=self.route.safe)

    @property
    def weights(self) -> list[list[float]]:
        return [parameter.flatten().tolist() for parameter in self.model.parameters()]


def dataset(samples: int) -> TensorDataset:
    own = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 4, generator=own)
    return TensorDataset(torch.arange(samples), x, x.sum(1, keepdim=True))


def taken_up(route: Route, folder) -> Trip:
    """A training that knows nothing but what the folder says."""
    trip = Trip(route, seed=99)
    trip.accelerator.load_state(folder)
    return trip


@contextmanager
def shared_folder():
    """A folder of all ranks, away when they are through."""
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    yield Path(made[0])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(made[0])


class StopHere(Exception):
    """The training ends here."""


def left_at(number: int, route: Route, folder) -> Trip:
    """A training that was saved after so many steps, and left."""
    trip = Trip(route)

    def leave(trip: Trip) -> None:
        if len(trip.steps) == number:
            trip.save(folder)
            raise StopHere

    with suppress(StopHere):
        trip.go(leave, leave)
    return trip


def assert_resumed_runs_equal_the_whole(route: Route, folder) -> None:
    """For every step and every epoch's end: saved there, and taken up by another training."""
    whole = Trip(route).go()
    saving = partial(_save_as_numbered, folder)
    saved = Trip(route).go(saving, saving)
    assert saved.steps == whole.steps, "saving changes the training"
    assert saved.weights == whole.weights
    for number in range(1, len(whole.steps) + 1):
        resumed = taken_up(route, folder / str(number)).go()
        assert resumed.steps == whole.steps[number:], f"taken up after step {number}"
        assert resumed.weights == whole.weights, f"taken up after step {number}"


def _save_as_numbered(folder, trip: Trip) -> None:
    trip.save(folder / str(len(trip.steps)))
