"""An Accelerator that is alone: in the kernel, or in a run of one."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import time

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nb_accelerate.errors import SpecError
from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.training import (
    AcceleratedOptimizer,
    Accelerator,
    DataLoaderConfiguration,
    DistributedType,
)

UPSTREAM = """
    device_placement split_batches mixed_precision gradient_accumulation_steps cpu dataloader_config
    deepspeed_plugin fsdp_plugin torch_tp_plugin megatron_lm_plugin rng_types log_with project_dir
    project_config gradient_accumulation_plugin step_scheduler_with_optimizer kwargs_handlers
    dynamo_backend dynamo_plugin deepspeed_plugins parallelism_config
"""

UNSUPPORTED = """
    deepspeed_plugin fsdp_plugin torch_tp_plugin megatron_lm_plugin deepspeed_plugins
    parallelism_config
"""


def loader_of(*numbers: float, batch: int = 1) -> DataLoader:
    return DataLoader(TensorDataset(torch.tensor(numbers)[:, None]), batch)


def fit_one_weight(accelerator: Accelerator, numbers: tuple[float, ...]) -> list[float]:
    """The gradients that the optimizer steps with, for the loss weight * number."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader_of(*numbers))
    gradients = []
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            if accelerator.sync_gradients:
                gradients.append(model.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    return gradients


# ---------------------------------------------------------------- construction
def test_the_arguments_have_accelerates_names_and_order() -> None:
    names = list(inspect.signature(Accelerator).parameters)
    assert names[: len(UPSTREAM.split())] == UPSTREAM.split()


def test_alone_it_is_the_main_the_local_main_and_the_last_process() -> None:
    accelerator = Accelerator()
    assert accelerator.is_main_process
    assert accelerator.is_local_main_process
    assert accelerator.is_last_process
    assert accelerator.distributed_type is DistributedType.NO
    assert str(DistributedType.NO) == "DistributedType.NO"
    assert not accelerator.use_distributed
    assert repr(accelerator).startswith("<Accelerator: rank 0 of 1 on ")


@pytest.mark.parametrize("name", UNSUPPORTED.split())
def test_an_argument_that_is_not_supported_is_refused_by_name(name: str) -> None:
    with pytest.raises(SpecError, match=rf"{name}='given'.*Leave {name} out"):
        Accelerator(**{name: "given"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"mixed_precision": "fp7"}, "'fp7' is none of 'no', 'fp16', 'bf16'"),
        ({"mixed_precision": "fp8"}, "'fp8' is not supported yet"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0"),
        ({"scheduler_steps_per_update": 0}, "scheduler_steps_per_update=0"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_a_sentence(arguments, sentence) -> None:
    with pytest.raises(SpecError, match=sentence):
        Accelerator(**arguments)


def test_fp16_is_refused_on_the_cpu_whoever_asks() -> None:
    with pytest.raises(SpecError, match=r"'fp16' was asked for.*'cpu'.*Use 'bf16'"):
        Accelerator(mixed_precision="fp16", cpu=True)
    with acting_as(Replica(mixed_precision="fp16", device="cpu")), pytest.raises(SpecError):
        Accelerator()
    with pytest.warns(FutureWarning, match="fp16=True"), pytest.raises(SpecError, match="'fp16'"):
        Accelerator(fp16=True, cpu=True)


def test_an_unknown_device_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SpecError, match=r"'meta'.*cpu, cuda, mps, xpu"):
        Accelerator(replica=Replica(device="meta"))


def test_split_batches_is_honoured_wherever_it_is_written() -> None:
    config = DataLoaderConfiguration(split_batches=True, even_batches=False)
    assert Accelerator(split_batches=True).split_batches
    assert Accelerator(dataloader_config=config).split_batches
    assert not Accelerator(True, True, dataloader_config=config).even_batches


def test_importing_and_constructing_initialises_no_device() -> None:
    code = """
import torch
def refuse(*_, **__): raise AssertionError("a device was initialised")
torch.cuda._lazy_init = torch.cuda.init = refuse
torch._C._cuda_init = refuse
from nb_accelerate.training import Accelerator
Accelerator(); Accelerator(mixed_precision="bf16")
assert torch.get_default_device().type == "cpu"
"""
    expect_success(code)


def expect_success(code: str) -> None:
    """Run it in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- travelling
def test_settings_travel_and_nothing_else() -> None:
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=3, cpu=True)
    accelerator.prepare(nn.Linear(1, 1))
    sent = pickle.dumps(accelerator)
    with acting_as(Replica(local_rank=1, gradient_accumulation_steps=9)):
        found = pickle.loads(sent)
        assert found.local_process_index == 1
    assert (found.mixed_precision, found.gradient_accumulation_steps) == ("bf16", 3)
    assert copy.deepcopy(accelerator) is accelerator


def test_in_a_forked_process_it_is_that_process_own() -> None:
    code = """
import os
from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.training import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=3)
if not (child := os.fork()):
    with acting_as(Replica(local_rank=1)):
        here = accelerator.local_process_index, accelerator.gradient_accumulation_steps
        os._exit(0 if here == (1, 3) else 1)
assert os.waitpid(child, 0)[1] == 0
assert accelerator.local_process_index == 0
"""
    expect_success(code)


def test_what_travels_of_prepared_objects_is_what_was_prepared() -> None:
    accelerator = Accelerator()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    prepared = accelerator.prepare(model, optimizer, schedule, loader_of(1.0, 2.0))
    model, optimizer, schedule, loader = cloudpickle.loads(cloudpickle.dumps(prepared))
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert schedule.optimizer is optimizer
    assert type(loader) is DataLoader


def test_a_mixed_precision_model_travels_as_a_plain_one_and_is_copied_as_it_is() -> None:
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    model = accelerator.prepare(nn.Linear(8, 8))
    x = torch.randn(4, 8)
    plain = F.linear(x, model.weight, model.bias)
    assert not torch.equal(model(x), plain)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), plain)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        model.weight.zero_()
    assert not torch.equal(copied(x), plain)  # still mixed
    assert torch.allclose(copied(x), plain, atol=0.1)  # with its own weights
    assert list(inspect.signature(model.forward).parameters) == ["input"]
    inner = accelerator.unwrap_model(copied, keep_fp32_wrapper=False)
    assert torch.equal(inner(x), plain)


def test_precision_belongs_to_the_accelerator_that_prepared_last() -> None:
    model = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    mixed = Accelerator(mixed_precision="bf16", cpu=True).prepare(model)(x)
    full = Accelerator(cpu=True).prepare(model)(x)
    assert torch.equal(full, F.linear(x, model.weight, model.bias))
    assert not torch.equal(full, mixed)


# ---------------------------------------------------------------- prepare
def test_prepare_gives_one_object_itself_and_several_in_their_order() -> None:
    accelerator = Accelerator()
    model = nn.Linear(1, 1)
    assert accelerator.prepare(model) is model
    assert accelerator.prepare("other", model) == ("other", model)
    with pytest.raises(SpecError, match="one object or more"):
        accelerator.prepare()
    with pytest.raises(SpecError, match="got 1 and 2"):
        accelerator.prepare(model, device_placement=[True, False])


def test_a_compiled_model_is_unwrapped_as_far_as_asked() -> None:
    accelerator = Accelerator()
    raw = nn.Linear(1, 1)
    compiled = accelerator.prepare(torch.compile(raw, backend="eager"))
    assert accelerator.unwrap_model(compiled) is compiled
    assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is raw


def test_batches_keep_their_structure_and_what_cannot_move() -> None:
    accelerator = Accelerator()
    samples = [{"x": torch.tensor([n]), "name": str(n)} for n in range(3)]
    batches = list(accelerator.prepare(DataLoader(samples, 2)))
    assert [batch["name"] for batch in batches] == [["0", "1"], ["2"]]
    seen = [accelerator.gather_for_metrics(batch)["x"].shape for batch in batches]
    assert seen == [(2, 1), (1, 1)]


def test_loaders_move_batches_to_the_device_unless_told_not_to() -> None:
    moving = Accelerator(replica=Replica(device="cpu"))
    moved: list[torch.device] = []

    class Movable:
        def to(self, device, **_):
            moved.append(device)
            return self

    loader = DataLoader([Movable(), Movable()], 1, collate_fn=lambda samples: samples[0])
    list(moving.prepare(loader))
    assert moved == [torch.device("cpu")] * 2
    list(Accelerator(device_placement=False).prepare(loader))
    list(Accelerator().prepare_data_loader(loader, device_placement=False))
    assert len(moved) == 2


def test_free_memory_forgets_and_gives_nones() -> None:
    accelerator = Accelerator()
    raw = loader_of(1.0)
    loader = accelerator.prepare(raw)
    assert accelerator.prepare(raw) is loader
    assert accelerator.free_memory(loader, "other") == [None, None]
    assert accelerator.prepare(raw) is not loader


# ---------------------------------------------------------------- accumulation
@pytest.mark.parametrize(
    ("numbers", "steps", "wanted"),
    [
        ((1.0, 2.0, 4.0), 1, [1.0, 2.0, 4.0]),
        ((1.0, 2.0, 4.0, 6.0), 2, [1.5, 5.0]),
        ((1.0, 2.0, 9.5), 2, [1.5, 9.5]),  # the last window holds one: not 4.75
        ((1.0, 2.0, 6.0), 4, [3.0]),
        ((3.0, 5.0, 7.0, 1.0, 2.0), 3, [5.0, 1.5]),
    ],
)
def test_a_window_divides_by_what_it_really_accumulated(numbers, steps, wanted) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=steps)
    assert fit_one_weight(accelerator, numbers) == pytest.approx(wanted)
    assert fit_one_weight(accelerator, numbers) == pytest.approx(wanted)  # nothing is left over


def test_two_losses_in_a_short_last_window_are_divided_alike() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(1, 1, bias=False)
    model, loader = accelerator.prepare(model, loader_of(1.0, 2.0, 6.0))
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            accelerator.backward(model(10 * x).sum())
    assert model.weight.grad.item() == pytest.approx(33.0)


def test_a_short_window_leaves_another_models_window_alone() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4)
    first, second = (accelerator.prepare(nn.Linear(1, 1, bias=False)) for _ in range(2))
    for number, (x,) in enumerate(accelerator.prepare(loader_of(1.0, 2.0, 6.0))):
        with accelerator.accumulate(first):
            accelerator.backward(first(x).sum())
        if number < 2:
            with accelerator.accumulate(second):
                accelerator.backward(second(x).sum())
    assert first.weight.grad.item() == pytest.approx(3.0)
    assert second.weight.grad.item() == pytest.approx(3 / 4)


def test_parameters_beside_the_model_belong_to_its_window() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model, beside = nn.Linear(1, 1, bias=False), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), beside], 0.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader_of(1.0, 2.0, 6.0))
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward((model(x) + beside * x).sum())
    assert beside.grad.item() == pytest.approx(3.0)


def test_without_a_prepared_loader_windows_are_whole() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    synced = []
    for _ in loader_of(1.0, 2.0, 3.0):
        with accelerator.accumulate():
            synced.append(accelerator.sync_gradients)
    assert synced == [False, True, False]


def test_gradients_are_synced_before_any_window() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    assert accelerator.sync_gradients
    accelerator.sync_gradients = False
    assert not accelerator.sync_gradients
    accelerator.gradient_accumulation_steps = 3
    assert accelerator.gradient_accumulation_steps == 3


# ---------------------------------------------------------------- optimizer and schedule
def test_the_optimizer_is_an_optimizer_and_shares_everything_with_the_one_within() -> None:
    accelerator = Accelerator()
    weight = nn.Parameter(torch.ones(1))
    inner = torch.optim.Adam([weight], 0.1)
    optimizer = accelerator.prepare(inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(optimizer, AcceleratedOptimizer)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    optimizer.param_groups[0]["lr"] = 0.5
    assert inner.param_groups[0]["lr"] == 0.5
    weight.grad = torch.ones(1)
    optimizer.step()
    assert optimizer.state_dict()["state"].keys() == {0}
    optimizer.load_state_dict(inner.state_dict())
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(inner.param_groups) == 2
    optimizer.zero_grad()
    assert weight.grad is None


def test_a_schedule_made_on_the_prepared_optimizer_drives_it() -> None:
    accelerator = Accelerator()
    weight = nn.Parameter(torch.ones(1))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], 1.0))
    schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    weight.grad = torch.ones(1)
    optimizer.step()
    schedule.step()
    assert schedule.get_last_lr() == [0.5]
    assert optimizer.optimizer.param_groups[0]["lr"] == 0.5


def test_a_schedule_stands_still_within_a_window() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    weight = nn.Parameter(torch.ones(1))
    raw = torch.optim.SGD([weight], 1.0)
    optimizer, schedule, loader = accelerator.prepare(
        raw, torch.optim.lr_scheduler.StepLR(raw, 1), loader_of(1.0, 2.0, 3.0, 4.0, 5.0)
    )
    epochs = []
    for (x,) in loader:
        with accelerator.accumulate():
            accelerator.backward((weight * x).sum())
            optimizer.step()
            schedule.step()
            epochs.append(schedule.last_epoch)
    assert epochs == [0, 1, 1, 2, 3]


def test_a_schedule_of_fixed_length_ends_without_an_error() -> None:
    accelerator = Accelerator()
    weight = nn.Parameter(torch.ones(1))
    raw = torch.optim.SGD([weight], 1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(raw, 1.0, total_steps=3)
    optimizer, schedule = accelerator.prepare(raw, schedule)
    for _ in range(6):
        optimizer.step()
        schedule.step()
    assert schedule.last_epoch == 3


def test_a_schedule_that_follows_nobody_moves_at_each_step() -> None:
    accelerator = Accelerator(step_scheduler_with_optimizer=False, gradient_accumulation_steps=9)
    raw = torch.optim.SGD([nn.Parameter(torch.ones(1))], 1.0)
    schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(raw, 1))
    raw.step()
    with accelerator.accumulate():
        schedule.step()
    assert schedule.last_epoch == 1


# ---------------------------------------------------------------- fp16, with a scaler on the CPU
@pytest.fixture
def scaled() -> tuple[Accelerator, AcceleratedOptimizer, nn.Parameter]:
    """An accelerator that scales its losses, as one for fp16 on a GPU does."""
    accelerator = Accelerator(cpu=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    accelerator._here.scaler = scaler
    weight = nn.Parameter(torch.ones(1))
    return accelerator, accelerator.prepare(torch.optim.SGD([weight], 1.0)), weight


def test_scaled_gradients_are_unscaled_once_before_clipping(scaled) -> None:
    accelerator, optimizer, weight = scaled
    accelerator.backward((weight * 4).sum())
    assert weight.grad.item() == 32.0
    assert accelerator.clip_grad_norm_([weight], 2.0).item() == 4.0
    assert accelerator.clip_grad_norm_(weight, 2.0).item() == pytest.approx(2.0)
    accelerator.unscale_gradients()
    optimizer.step()
    assert weight.item() == pytest.approx(-1.0)
    optimizer.zero_grad()
    accelerator.backward((weight * 4).sum())
    optimizer.step()
    assert weight.item() == pytest.approx(-5.0)


def test_a_step_with_overflowing_gradients_is_skipped_and_the_schedule_waits(scaled) -> None:
    accelerator, optimizer, weight = scaled
    schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1))
    accelerator.backward((weight * float("inf")).sum())
    optimizer.step()
    schedule.step()
    assert accelerator.optimizer_step_was_skipped
    assert (weight.item(), schedule.last_epoch) == (1.0, 0)
    optimizer.zero_grad()
    accelerator.backward(weight.sum())
    optimizer.step()
    schedule.step()
    assert not accelerator.optimizer_step_was_skipped
    assert (weight.item(), schedule.last_epoch) == (0.0, 1)
    with pytest.raises(SpecError, match="closure"):
        optimizer.step(lambda: 0.0)


def test_weights_in_float16_are_named_with_the_cure(scaled) -> None:
    accelerator, _, _ = scaled
    model = accelerator.prepare(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).half()))
    with pytest.raises(SpecError, match=r"float16: 1\.weight, 1\.bias.*float\(\)"):
        accelerator.prepare(torch.optim.SGD(model.parameters(), 0.1))


# ---------------------------------------------------------------- telling
def test_a_log_call_costs_next_to_nothing() -> None:
    accelerator = Accelerator()
    values = {"loss": torch.tensor(0.5)}
    fastest = min(seconds_of(lambda: accelerator.log(values)) for _ in range(200))
    assert fastest < 5e-6


def seconds_of(call) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
