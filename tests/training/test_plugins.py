"""Plugins and handlers: what Accelerate's constructor is told beyond plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from nb_accelerate.errors import SpecError
from nb_accelerate.training import Accelerator
from nb_accelerate.training.communication import (
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    hook_of,
)
from nb_accelerate.training.compiling import DynamoBackend, TorchDynamoPlugin
from nb_accelerate.training.plugins import (
    AutocastKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
)
from nb_accelerate.training.profiling import ProfileKwargs


@dataclass
class Three(KwargsHandler):
    a: int = 0
    b: bool = False
    c: float = 3.0


def test_a_handler_tells_what_is_not_the_default() -> None:
    assert Three().to_kwargs() == {}
    assert Three(a=2, c=2.5).to_kwargs() == {"a": 2, "c": 2.5}
    assert Three(b=True).to_dict() == {"a": 0, "b": True, "c": 3.0}


def test_each_handler_is_found_under_its_name() -> None:
    handlers = [
        AutocastKwargs(), DistributedDataParallelKwargs(), GradScalerKwargs(),
        InitProcessGroupKwargs(timeout=timedelta(seconds=5)), ProfileKwargs(),
    ]  # fmt: skip
    a = Accelerator(kwargs_handlers=handlers)
    found = [a.autocast_handler, a.ddp_handler, a.scaler_handler, a.init_handler, a.profile_handler]
    assert all(one is other for one, other in zip(found, handlers, strict=True))
    assert Accelerator(kwargs_handlers=[]).ddp_handler is None


def test_two_handlers_of_a_kind_and_things_that_are_none_are_refused() -> None:
    with pytest.raises(SpecError, match="two AutocastKwargs"):
        Accelerator(kwargs_handlers=[AutocastKwargs(), AutocastKwargs()])
    with pytest.raises(SpecError, match="'stranger'; supported are Dist"):
        Accelerator(kwargs_handlers=["stranger"])


# ---------------------------------------------------------------- accumulation
def test_the_accumulation_plugin_is_followed_and_not_shared() -> None:
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    first, second = (Accelerator(gradient_accumulation_plugin=plugin) for _ in range(2))
    first.gradient_accumulation_steps = 5
    assert (second.gradient_accumulation_steps, plugin.num_steps) == (2, 2)
    assert [second.sync_gradients for _ in windows(second, 3)] == [False, True, False]


def test_the_accumulation_plugin_excludes_the_argument() -> None:
    plugin = GradientAccumulationPlugin(num_steps=2)
    with pytest.raises(SpecError, match="give one of them"):
        Accelerator(gradient_accumulation_steps=3, gradient_accumulation_plugin=plugin)
    Accelerator(gradient_accumulation_steps=1, gradient_accumulation_plugin=plugin)
    with pytest.raises(SpecError, match="num_steps=0"):
        GradientAccumulationPlugin(num_steps=0)


def windows(accelerator: Accelerator, batches: int):
    model = nn.Linear(1, 1)
    for _ in accelerator.prepare(DataLoader(range(batches))):
        with accelerator.accumulate(model):
            yield


def test_the_last_batch_ends_a_window_and_the_steps_tell_its_true_length() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=3)
    model, before, within, after = nn.Linear(1, 1), [], [], []
    for _ in accelerator.prepare(DataLoader(range(5))):
        before.append(accelerator.gradient_accumulation_steps)
        with accelerator.accumulate(model):
            within.append(accelerator.sync_gradients)
        after.append(accelerator.gradient_accumulation_steps)
    assert within == [False, False, True, False, True]
    assert before == after == [3, 3, 3, 3, 2]
    assert accelerator.gradient_accumulation_steps == 3


def test_a_loss_divided_by_hand_has_the_right_share_in_a_short_window() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=3)
    model, loader = accelerator.prepare(nn.Linear(1, 1, bias=False), DataLoader(torch.ones(5, 1)))
    gradients = []
    for number, x in enumerate(loader, 1):
        share = model(number * x).sum() / accelerator.gradient_accumulation_steps
        with accelerator.accumulate(model):
            share.backward()
        if accelerator.sync_gradients:
            gradients.append(model.weight.grad.item())
            model.weight.grad = None
    assert gradients == pytest.approx([(1 + 2 + 3) / 3, (4 + 5) / 2])


# ---------------------------------------------------------------- autocast
def test_autocast_obeys_the_handler_of_the_call_and_of_the_accelerator() -> None:
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    a = torch.ones(2, 2)
    with accelerator.autocast():
        assert (a @ a).dtype is torch.bfloat16
        with accelerator.autocast(AutocastKwargs(enabled=False)):
            assert (a @ a).dtype is torch.float32
        assert (a @ a).dtype is torch.bfloat16
    without = Accelerator(
        mixed_precision="bf16", cpu=True, kwargs_handlers=[AutocastKwargs(enabled=False)]
    )
    seen = []
    model = without.prepare(nn.Linear(2, 2))
    model.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    model(a)
    with without.autocast():
        assert (a @ a).dtype is torch.float32
    with Accelerator().autocast():
        assert (a @ a).dtype is torch.float32


# ---------------------------------------------------------------- compiling
def test_the_dynamo_plugin_reads_what_it_is_not_told_from_the_environment(monkeypatch) -> None:
    assert TorchDynamoPlugin().to_kwargs() == {}
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "aot_eager")
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "reduce-overhead")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "1")
    asked = TorchDynamoPlugin(fullgraph=True)
    assert asked.to_kwargs() == {
        "backend": "aot_eager", "mode": "reduce-overhead", "dynamic": True, "fullgraph": True,
    }  # fmt: skip
    assert TorchDynamoPlugin(backend="eager").backend is DynamoBackend.EAGER


def test_a_compiled_model_is_prepared_once_and_unwrapped() -> None:
    accelerator = Accelerator(dynamo_backend="eager")
    raw = nn.Linear(2, 2)
    model = accelerator.prepare(raw)
    assert isinstance(model, torch._dynamo.OptimizedModule)
    assert accelerator.prepare(raw) is model
    assert accelerator.prepare(model) is model
    x = torch.ones(1, 2)
    torch.testing.assert_close(model(x), raw(x))
    assert accelerator.unwrap_model(model, keep_torch_compile=False) is raw
    assert accelerator.state.dynamo_plugin.backend is DynamoBackend.EAGER


def test_compilation_that_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="'fast' is none of 'no', 'eager'"):
        Accelerator(dynamo_backend="fast")
    with pytest.raises(SpecError, match="give one of them"):
        Accelerator(dynamo_backend="eager", dynamo_plugin=TorchDynamoPlugin())
    with pytest.raises(SpecError, match="is no TorchDynamoPlugin"):
        Accelerator(dynamo_plugin="eager")


def test_the_blocks_of_a_model_are_compiled_each_on_its_own() -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    raw, x = Tower(), torch.ones(1, 2)
    wanted, names = raw(x), list(raw.state_dict())
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=True)
    model = Accelerator(dynamo_plugin=plugin).prepare(raw)
    torch.testing.assert_close(model(x), wanted)
    assert all(block._compiled_call_impl is not None for block in raw.blocks)
    assert list(model.state_dict()) == names


# ---------------------------------------------------------------- profiling
def test_a_profile_is_written_where_the_handler_says(tmp_path) -> None:
    asked = ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path / "traces"))
    accelerator = Accelerator(kwargs_handlers=[asked])
    with accelerator.profile() as profiler:
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert any("mm" in event.key for event in profiler.key_averages())
    trace = json.loads((tmp_path / "traces" / "profile_0.json").read_text())
    assert trace["traceEvents"]


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_a_profile_follows_its_schedule() -> None:
    ready = []
    asked = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 1, "warmup": 1, "active": 1, "repeat": 2},
        on_trace_ready=lambda profiler: ready.append(profiler.step_num),
    )
    with Accelerator().profile(asked) as profiler:
        for _ in range(7):
            torch.ones(2) + 1
            profiler.step()
    assert len(ready) == 2
    with pytest.raises(SpecError, match="'gpu' is none of cpu"):
        ProfileKwargs(activities=["gpu"]).build()


# ---------------------------------------------------------------- hooks and refusals
def test_communication_hooks_are_named_as_upstream_names_them() -> None:
    assert hook_of(DistributedDataParallelKwargs()) is None
    fp16 = hook_of(DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16))
    assert fp16.__name__ == "fp16_compress_hook"
    assert str(DDPCommunicationHookType.POWER_SGD) == "power_sgd"
    with pytest.raises(SpecError, match="comm_hook='zip' is none of 'no', 'fp16'"):
        hook_of(DistributedDataParallelKwargs(comm_hook="zip"))
    wrong = DDPCommunicationHookType.POWER_SGD
    with pytest.raises(SpecError, match="only 'fp16' and 'bf16' wrap"):
        hook_of(DistributedDataParallelKwargs(comm_wrapper=wrong))


def test_a_quantized_model_on_the_cpu_cannot_be_trained() -> None:
    model = nn.Linear(1, 1)
    model.is_loaded_in_8bit, model.hf_device_map = True, {"": "cpu"}
    with pytest.raises(ValueError, match="CPU or disk offload"):
        Accelerator().prepare_model(model)


def test_triggers_profiles_and_flags_work_alone() -> None:
    accelerator = Accelerator()
    assert accelerator.check_trigger() is False
    accelerator.set_trigger()
    assert accelerator.flag_tensor.item() == 1
    assert accelerator.check_trigger() is True
    assert accelerator.check_trigger() is False
    assert accelerator.flag_tensor is None
    with accelerator.join_uneven_inputs([nn.Linear(1, 1)]):
        pass
    with pytest.raises(SpecError, match="LOMO"):
        accelerator.lomo_backward(torch.zeros(()), 0.1)
    with pytest.raises(RuntimeError, match="process_index"):
        _ = accelerator.data_parallel_rank
