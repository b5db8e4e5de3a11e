"""fp16: the scaler's logic, on a CPU that is told that it can train so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from nb_accelerate.errors import SpecError
from nb_accelerate.training import Accelerator
from nb_accelerate.training.plugins import GradScalerKwargs
from nb_accelerate.training.torch_engine import KINDS


@pytest.fixture(autouse=True)
def _cpu_that_trains_in_fp16(monkeypatch) -> None:
    monkeypatch.setitem(KINDS, "cpu", replace(KINDS["cpu"], trains_in_fp16=True))


def fp16(**told) -> Accelerator:
    scaling = GradScalerKwargs(init_scale=1024.0, growth_interval=1000, **told)
    return Accelerator(mixed_precision="fp16", cpu=True, kwargs_handlers=[scaling])


def prepared(accelerator: Accelerator):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return accelerator.prepare(model, optimizer, schedule)


def test_it_computes_in_float16_and_gives_float32() -> None:
    accelerator = fp16()
    assert accelerator.native_amp
    assert accelerator.scaler.get_scale() == 1024.0
    model, _, _ = prepared(accelerator)
    inner = []
    wrapped = nn.Sequential(nn.Linear(4, 4))
    wrapped[0].register_forward_hook(lambda _m, _i, output: inner.append(output.dtype))
    assert accelerator.prepare(wrapped)(torch.ones(1, 4)).dtype is torch.float32
    assert inner == [torch.float16]
    assert model(torch.ones(1, 4)).dtype is torch.float32


def test_an_update_is_that_of_the_unscaled_gradients() -> None:
    accelerator = fp16()
    model, optimizer, _ = prepared(accelerator)
    before = model.weight.detach().clone()
    accelerator.backward(model(torch.ones(1, 4)).sum())
    assert model.weight.grad.tolist() == [[1024.0] * 4]
    norm = accelerator.clip_grad_norm_(model.parameters(), 100.0)
    assert norm.item() == pytest.approx(5**0.5)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.1)
    assert not accelerator.optimizer_step_was_skipped


def test_an_overflow_skips_the_step_halves_the_scale_and_leaves_the_schedule_alone() -> None:
    accelerator = fp16()
    model, optimizer, schedule = prepared(accelerator)
    before = model.weight.detach().clone()
    accelerator.backward(model(torch.ones(1, 4)).sum() * float("inf"))
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    assert accelerator.optimizer_step_was_skipped
    assert optimizer._is_overflow
    assert torch.equal(model.weight, before)
    assert schedule.scheduler.last_epoch == 0
    assert accelerator.scaler.get_scale() == 512.0
    accelerator.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()
    schedule.step()
    assert not accelerator.optimizer_step_was_skipped
    assert schedule.scheduler.last_epoch == 1
    assert not torch.equal(model.weight, before)


def test_a_skipped_step_within_accumulation_waits_for_the_windows_end() -> None:
    accelerator = Accelerator(
        mixed_precision="fp16", cpu=True, gradient_accumulation_steps=2,
        kwargs_handlers=[GradScalerKwargs(init_scale=4.0)],
    )  # fmt: skip
    model, optimizer, schedule = prepared(accelerator)
    for factor in (float("nan"), 1.0):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 4)).sum() * factor)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert accelerator.optimizer_step_was_skipped
    assert schedule.scheduler.last_epoch == 0
    assert model.weight.grad is None


def test_weights_in_float16_are_refused_by_name_instead_of_failing_in_unscale() -> None:
    accelerator = fp16()
    model = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SpecError, match=r"float16: 0\.weight, 0\.bias.*parameter\.float\(\)"):
        accelerator.prepare(model, optimizer)


def test_a_window_weighed_by_tokens_is_exact_in_fp16() -> None:
    accelerator = Accelerator(
        mixed_precision="fp16", cpu=True, gradient_accumulation_steps=2,
        kwargs_handlers=[GradScalerKwargs(init_scale=256.0)],
    )  # fmt: skip
    model, optimizer, _ = prepared(accelerator)
    for tokens in (1, 3):
        with accelerator.accumulate(model, tokens=tokens):
            accelerator.backward(model(tokens * torch.ones(tokens, 4)).sum())
    optimizer.unscale()
    expected = (1 * 1 + 3 * 3) / 4
    torch.testing.assert_close(model.weight.grad, torch.full((1, 4), expected))
