"""Launches on real GPUs; skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest

from nb_accelerate.errors import LeftEarly
from nb_accelerate.launch.environment import survey_here

pytestmark = pytest.mark.gpu

needs_two = pytest.mark.skipif(
    len(survey_here().gpus) < 2, reason="this machine has fewer than 2 CUDA devices"
)


def compute() -> dict[str, object]:
    import torch
    import torch.distributed as dist

    from nb_accelerate import Accelerator

    accelerator = Accelerator()
    on_device = torch.ones(4, device=accelerator.device) * (accelerator.process_index + 1)
    on_cpu = torch.ones(1)
    dist.all_reduce(on_device)
    dist.all_reduce(on_cpu)
    return {
        "device": str(accelerator.device),
        "sum": on_device,
        "cpu sum": float(on_cpu),
        "backend": dist.get_backend_config(),
    }


def test_one_gpu_computes_and_its_tensors_come_back(launch):
    run = launch(compute, num_processes=1, hardware="cuda")
    assert run.value["device"] == "cuda:0"
    assert run.value["sum"].tolist() == [1.0] * 4
    assert run.value["cpu sum"] == 1.0


def test_the_launching_process_touches_no_device(launch):
    import torch

    launch(compute, num_processes=1, hardware="cuda")
    assert not torch.cuda.is_initialized()


@needs_two
def test_two_gpus_are_one_world_and_cpu_tensors_gather_too(launch):
    run = launch(compute, num_processes=2, hardware="cuda")
    assert [value["device"] for value in run.values] == ["cuda:0", "cuda:1"]
    assert [value["sum"].tolist() for value in run.values] == [[3.0] * 4] * 2
    assert [value["cpu sum"] for value in run.values] == [2.0, 2.0]


@needs_two
def test_a_rank_that_leaves_early_is_named_though_nccl_does_not_notice(launch):
    def leave() -> None:
        import torch
        import torch.distributed as dist

        tensor = torch.ones(1, device="cuda")
        if dist.get_rank() == 0:
            dist.all_reduce(tensor)
            torch.cuda.synchronize()

    with pytest.raises(LeftEarly, match="rank 1 returned while rank 0 waits"):
        launch(leave, num_processes=2, hardware="cuda")


def test_relaunching_gives_back_all_device_memory(launch):
    def fill() -> int:
        import torch

        free, total = torch.cuda.mem_get_info()
        torch.empty(int(free * 0.8), dtype=torch.uint8, device="cuda")
        return total

    totals = {launch(fill, num_processes=1, hardware="cuda").value for _ in range(3)}
    assert len(totals) == 1
