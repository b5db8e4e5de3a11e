"""One contract, kept by every row of the table of start methods."""

from __future__ import annotations

import os
import threading

import pytest

from nb_accelerate.errors import PlanError, WorkerDied
from nb_accelerate.replica import current_replica

METHODS = ("template", "spawn", "fork")


def report() -> dict[str, object]:
    import torch.distributed as dist

    replica = current_replica()
    total = [None] * replica.world_size
    dist.all_gather_object(total, replica.rank)
    replica.reporter.metrics({"rank": replica.rank}, None)
    print("here")
    return {"gathered": total, "pid": os.getpid(), "rank": replica.rank}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_values_metrics_and_output_of_all_ranks(launch, method: str):
    run = launch(report, start_method=method)
    assert [value["gathered"] for value in run.values] == [[0, 1], [0, 1]]
    assert [value["rank"] for value in run.values] == [0, 1]
    assert os.getpid() not in [value["pid"] for value in run.values]
    assert run.metrics.by_rank("rank") == {0: [0.0], 1: [1.0]}
    assert sorted((line.rank, line.text) for line in run.log) == [(0, "here"), (1, "here")]
    assert run.status == "finished"


def test_inline_runs_in_this_process(launch):
    def alone() -> tuple[int, int]:
        current_replica().reporter.metrics({"loss": 0.5}, None)
        return os.getpid(), current_replica().world_size

    run = launch(alone, num_processes=1, start_method="inline")
    assert run.value == (os.getpid(), 1)
    assert run.metrics.last("loss") == 0.5


@pytest.mark.parametrize("method", [*METHODS, "inline"])
def test_every_method_raises_the_functions_own_exception(launch, method: str):
    class MyError(Exception):
        pass

    def fail() -> None:
        raise MyError("of mine")

    with pytest.raises(MyError, match="of mine"):
        launch(fail, num_processes=1, start_method=method)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_tells_of_a_rank_that_is_gone(launch, method: str):
    def vanish() -> None:
        import torch.distributed as dist

        if dist.get_rank() == 1:
            os._exit(7)
        dist.barrier()

    with pytest.raises(WorkerDied, match="rank 1 ended with exit code 7") as caught:
        launch(vanish, start_method=method)
    assert caught.value.exit_code == 7
    assert caught.value.run.status == "failed"


def test_fork_hands_over_what_cannot_be_pickled(launch):
    lock = threading.Lock()

    def hold() -> bool:
        with lock:
            return lock.locked()

    assert launch(hold, start_method="fork").values == [True, True]


def test_fork_is_refused_when_this_process_holds_a_device(launch, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(PlanError, match="CUDA is already initialised"):
        launch(report, start_method="fork")
