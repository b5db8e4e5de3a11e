"""Checkpoints on one and on two ranks: a resumed training is the whole one, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from resuming import (
    BATCH,
    Route,
    Trip,
    assert_resumed_runs_equal_the_whole,
    left_at,
    shared_folder,
    taken_up,
)
from torch import nn

from nb_accelerate.errors import CheckpointError, SpecError
from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.training import Accelerator
from nb_accelerate.training.checkpoint import ProjectConfiguration

if TYPE_CHECKING:
    from pathlib import Path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- resuming
def check_a_resumed_run_equals_the_uninterrupted_one() -> None:
    for sampler in ("shuffle", "generator", "seedable", "in order"):
        with shared_folder() as folder:
            assert_resumed_runs_equal_the_whole(Route(sampler=sampler), folder)


def check_a_resumed_run_without_accumulation_and_safetensors_is_equal() -> None:
    with shared_folder() as folder:
        assert_resumed_runs_equal_the_whole(Route(accumulation=1, safe=False), folder)


def check_every_sample_comes_once_when_the_number_of_ranks_changes() -> None:
    for sampler in ("shuffle", "generator", "seedable", "in order"):
        for number in range(1, 4):
            route = Route(samples=4 * BATCH * dist.get_world_size(), sampler=sampler)
            with shared_folder() as folder:
                _assert_others_take_up(route, number, folder)


def _assert_others_take_up(route: Route, number: int, folder: Path) -> None:
    """All ranks save and each alone goes on; one alone saves and all go on."""
    alone = Replica()
    together = left_at(number, route, folder / "together")
    with acting_as(alone):
        rest = taken_up(route, folder / "together").go().steps
    assert _epoch(_all(_ids(together.steps)), _ids(rest)) == list(range(route.samples))
    if dist.get_rank() == 0:
        with acting_as(alone):
            begun = _ids(left_at(number, route, folder / "alone").steps)
    dist.barrier()
    first = Trip(route, seed=99)
    if dist.get_world_size() > 1 and dist.get_rank() == 1:
        with pytest.warns(UserWarning, match="fewer ranks than the 2 of now: rank 1"):
            first.accelerator.load_state(folder / "alone")
    else:
        first.accelerator.load_state(folder / "alone")
    rest = _all(_ids(first.go().steps))
    if dist.get_rank() == 0:
        assert set(_epoch(begun, rest)) == set(range(route.samples))


def _ids(steps) -> list[int]:
    """The samples of the first epoch: up to the record of its evaluation."""
    ids = []
    for step in steps:
        if not isinstance(step[0], list):
            break
        ids += step[0]
    return ids


def _all(ids: list[int]) -> list[int]:
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, ids)
    return [one for part in gathered for one in part]


def _epoch(before: list[int], after: list[int]) -> list[int]:
    return sorted([*before, *after])


# ---------------------------------------------------------------- together
def check_an_error_of_one_rank_is_an_error_of_all() -> None:
    accelerator = Accelerator()
    accelerator.prepare(nn.Linear(2, 2))

    def hook(models, weights, output_dir) -> None:
        if dist.get_rank() == dist.get_world_size() - 1:
            raise OSError("disk full")

    with shared_folder() as folder:
        handle = accelerator.register_save_state_pre_hook(hook)
        with pytest.raises((OSError, CheckpointError), match="disk full"):
            accelerator.save_state(folder / "x")
        dist.barrier()
        assert names_in(folder) == []
        handle.remove()
        accelerator.save_state(folder / "x")
        if dist.get_rank() == 0:
            (folder / "x" / "model.safetensors").unlink()
        dist.barrier()
        with pytest.raises(CheckpointError, match="no weights for model 0"):
            accelerator.load_state(folder / "x")
        with pytest.raises(SpecError, match="no such folder"):
            accelerator.load_state(folder / "y")


def check_all_ranks_give_a_checkpoint_the_same_number() -> None:
    with shared_folder() as folder:
        project = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2)
        accelerator = Accelerator(project_config=project)
        model = accelerator.prepare(nn.Linear(2, 2))
        for value in range(4):
            nn.init.constant_(model.weight, value)
            accelerator.save_state()
        dist.barrier()
        assert names_in(folder / "checkpoints") == ["checkpoint_2", "checkpoint_3"]
        files = {f"random_states_{rank}.pkl" for rank in range(dist.get_world_size())}
        assert files <= set(names_in(folder / "checkpoints" / "checkpoint_3"))
        accelerator.load_state()
        assert torch.equal(model.weight, torch.full((2, 2), 3.0))


def check_only_the_main_process_writes_models_and_objects() -> None:
    accelerator = Accelerator()
    with shared_folder() as folder:
        own = folder / str(dist.get_rank())
        accelerator.save({"x": torch.ones(1)}, own)
        if accelerator.is_main_process:  # no collective: others may be elsewhere
            accelerator.save_model(nn.Linear(2, 2), folder / "model")
        dist.barrier()
        assert names_in(folder) == ["0", "model"]
