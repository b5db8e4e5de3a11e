"""What two ranks tell and agree on: trackers, logs, bars, batch sizes, seeds, operations."""

from __future__ import annotations

import contextlib
import io
import logging
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nb_accelerate.errors import DistributedOperationException
from nb_accelerate.replica import current_replica
from nb_accelerate.training import Accelerator, set_seed
from nb_accelerate.training.bars import tqdm
from nb_accelerate.training.logs import get_logger
from nb_accelerate.training.memory import find_executable_batch_size
from nb_accelerate.training.operations import (
    broadcast,
    broadcast_object_list,
    copy_tensor_to_devices,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
)
from nb_accelerate.training.seeding import synchronize_rng_states
from nb_accelerate.training.trackers import GeneralTracker, on_main_process


def rank() -> int:
    return dist.get_rank()


class Kept(GeneralTracker):
    name = "kept"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.told = []

    @property
    def tracker(self):
        return self.told

    def start(self) -> None:
        self.told.append("start")

    @on_main_process
    def log(self, values, step=None, **kwargs) -> None:
        self.told.append((values, step))

    def log_images(self, values) -> str:
        return "shown"

    def finish(self) -> None:
        self.told.append("finish")


# ---------------------------------------------------------------- trackers
def check_trackers_are_told_by_the_main_process_and_the_cell_by_all() -> None:
    tracker, records = Kept(), current_replica().reporter.records
    records.clear()
    accelerator = Accelerator(log_with=tracker)
    assert accelerator.log_with == [tracker]
    accelerator.init_trackers("project", {"lr": 1})
    accelerator.log({"loss": rank()}, step=3)
    accelerator.end_training()
    main = ["start", ({"loss": 0}, 3), "finish"]
    assert tracker.told == (main if rank() == 0 else [])
    assert accelerator.trackers == ([tracker] if rank() == 0 else [])
    assert records == [({"loss": rank()}, 3)]
    assert dist.is_initialized()  # the group is the launch's, and stays


def check_what_ranks_without_trackers_get_takes_any_call() -> None:
    accelerator = Accelerator(log_with=Kept())
    accelerator.init_trackers("project")
    tracker = accelerator.get_tracker("kept")
    assert isinstance(tracker, GeneralTracker)
    assert tracker.log_images({}) == ("shown" if rank() == 0 else None)
    accelerator.get_tracker("kept", unwrap=True).append("by hand")
    if rank() == 1:
        assert accelerator.get_tracker("nothing like it").define(1, x=2) is None
        with pytest.raises(AttributeError, match="no tracker on this rank"):
            _ = tracker._own
    accelerator.end_training()


def check_decorated_methods_of_trackers_act_on_the_main_process() -> None:
    tracker = Kept()
    tracker.log({"a": 1}, step=2)
    assert tracker.told == ([({"a": 1}, 2)] if rank() == 0 else [])
    tracker.main_process_only = False
    tracker.log({"b": 1})
    assert tracker.told[-1] == ({"b": 1}, None)


# ---------------------------------------------------------------- logs and bars
class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines = []

    def emit(self, record) -> None:
        self.lines.append(record.getMessage())


def listened_to(name: str):
    handler, logger = Lines(), get_logger(name, "info")
    logger.logger.addHandler(handler)
    logger.logger.propagate = False
    return logger, handler.lines


def check_messages_come_from_the_main_process_unless_told_else() -> None:
    logger, lines = listened_to("checks.messages")
    logger.info("of the main one")
    logger.info("of each", main_process_only=False)
    logger.warning_once("once", main_process_only=False)
    logger.warning_once("once", main_process_only=False)
    all_lines = [f"[RANK {rank()}] of each", f"[RANK {rank()}] once"]
    assert lines == (["[RANK 0] of the main one"] if rank() == 0 else []) + all_lines


def check_ordered_messages_wait_for_one_another_whatever_the_levels() -> None:
    logger, lines = listened_to("checks.order")
    if rank() == 1:
        logger.setLevel(logging.ERROR)
    logger.info("not of rank 1", in_order=True)
    logger.error("of both", in_order=True)
    own = [f"[RANK {rank()}] of both"]
    assert lines == (["[RANK 0] not of rank 1", *own] if rank() == 0 else own)
    assert gather_object([rank()]) == [0, 1]  # they are at the same place


def check_bars_are_those_of_the_first_rank() -> None:
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        assert list(tqdm(range(2), desc="one")) == [0, 1]
        assert list(tqdm(range(2), desc="all", main_process_only=False)) == [0, 1]
    assert ("one" in shown.getvalue()) == (rank() == 0)
    assert "all" in shown.getvalue()


# ---------------------------------------------------------------- batch sizes and seeds
def check_one_ranks_shortage_is_everyones() -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=20)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        if rank() == 1 and batch_size > 15:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return batch_size

    for _ in range(2):
        assert train() == 14
    assert tried == [20, 18, 16, 14] * 2


def check_the_next_batch_size_is_rank_0s_choice() -> None:
    def smaller() -> int:
        return 6 if rank() == 0 else 7

    @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=smaller)
    def train(batch_size: int) -> int:
        if batch_size == 8:
            raise torch.OutOfMemoryError("out")
        return batch_size

    assert train() == 6


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(()).item()]


def check_seeds_are_the_same_on_all_ranks_unless_told_else() -> None:
    set_seed(3)
    same = gather_object([drawn()])
    assert same[0] == same[1]
    set_seed(3, device_specific=True)
    own = gather_object([drawn()])
    assert own[0] == same[0]
    assert all(a != b for a, b in zip(*own, strict=True))


def check_generators_go_on_as_rank_0s() -> None:
    torch.manual_seed(rank())
    generator = torch.Generator().manual_seed(10 + rank())
    synchronize_rng_states(["torch", "generator"], generator)
    numbers = [torch.rand(()).item(), torch.rand((), generator=generator).item()]
    everyone = gather_object([numbers])
    assert everyone[0] == everyone[1]
    torch.manual_seed(0)
    assert everyone[0][0] == torch.rand(()).item()
    with pytest.raises(ValueError, match="'tpu' was to be made equal"):
        synchronize_rng_states(["tpu"])


# ---------------------------------------------------------------- operations
def check_operations_do_what_the_accelerator_does() -> None:
    mine = torch.tensor([1.0, 2.0]) + 2 * rank()
    assert gather({"x": mine})["x"].tolist() == [1, 2, 3, 4]
    assert gather_object([rank(), "a"]) == [0, "a", 1, "a"]
    assert reduce(mine).tolist() == [2, 3]
    assert reduce(mine, "sum").tolist() == [4, 6]
    assert reduce(mine, "max").tolist() == [3, 4]
    assert reduce(mine, "none").tolist() == mine.tolist()
    assert broadcast(mine.clone(), from_process=1).tolist() == [3, 4]
    objects = [rank(), {"of": rank()}]
    assert broadcast_object_list(objects, 1) is objects
    assert objects == [1, {"of": 1}]


def check_tensors_are_padded_to_the_largest() -> None:
    mine = torch.full((rank() + 1, 2), 5.0)
    padded = pad_across_processes([mine], pad_index=-1)[0]
    assert padded.tolist() == ([[5, 5], [-1, -1]] if rank() == 0 else [[5, 5], [5, 5]])
    first = pad_across_processes(mine, dim=-2, pad_first=True)
    assert first.tolist() == ([[0, 0], [5, 5]] if rank() == 0 else [[5, 5], [5, 5]])


def check_a_tensor_of_one_rank_reaches_the_others() -> None:
    tensor = torch.arange(3, dtype=torch.int16) if rank() == 1 else None
    copy = copy_tensor_to_devices(tensor)
    assert (copy.tolist(), copy.dtype) == ([0, 1, 2], torch.int16)


def check_data_that_does_not_fit_together_is_refused_on_every_rank() -> None:
    wrong = torch.zeros(1, 5) if rank() == 0 else torch.zeros(1, 1, 6)
    for operation in (gather, reduce, broadcast, pad_across_processes):
        with pytest.raises(
            DistributedOperationException, match=r"rank 1 brings float32 \[1, 1, 6\]"
        ):
            operation({"tensor": wrong})
    with pytest.raises(ValueError, match="rank 0 is in gather, rank 1 is in reduce"):
        (gather if rank() == 0 else reduce)(torch.zeros(1))
