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


def test_fp16_trains_with_a_scaler_and_weights_stay_in_full_precision(launch):
    def train() -> dict[str, object]:
        import torch
        from torch import nn

        from nb_accelerate import Accelerator

        torch.manual_seed(0)
        accelerator = Accelerator(mixed_precision="fp16")
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        model, optimizer = accelerator.prepare(model, optimizer)
        x = torch.randn(64, 16, device=accelerator.device)
        losses = []
        for _ in range(30):
            loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return {
            "losses": losses,
            "scale": accelerator.scaler.get_scale(),
            "dtype": str(next(model.parameters()).dtype),
        }

    run = launch(train, num_processes=1, hardware="cuda")
    assert run.value["losses"][-1] < run.value["losses"][0] / 2
    assert run.value["scale"] > 1
    assert run.value["dtype"] == "torch.float32"


def test_an_overflow_of_fp16_leaves_weights_and_schedule_alone(launch):
    def overflow() -> tuple[bool, bool, int]:
        import torch
        from torch import nn

        from nb_accelerate import Accelerator

        accelerator = Accelerator(mixed_precision="fp16")
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        before = model.weight.detach().clone()
        accelerator.backward(model(torch.ones(1, 4, device=accelerator.device)).sum() * 1e30)
        optimizer.step()
        schedule.step()
        unchanged = torch.equal(before, model.weight.detach())
        return accelerator.optimizer_step_was_skipped, unchanged, schedule.scheduler.last_epoch

    run = launch(overflow, num_processes=1, hardware="cuda")
    assert run.value == (True, True, 0)
