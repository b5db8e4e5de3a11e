"""What a training step is made of, on two ranks: uneven inputs, hooks, triggers, local SGD."""

from __future__ import annotations

import warnings

import pytest
import torch
from plain import Recipe, build
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from nb_accelerate.errors import SpecError
from nb_accelerate.training import Accelerator, DataLoaderConfiguration
from nb_accelerate.training.communication import (
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
)
from nb_accelerate.training.engine import DistributedType
from nb_accelerate.training.local_sgd import LocalSGD
from nb_accelerate.training.plugins import GradientAccumulationPlugin


def line(accelerator: Accelerator) -> nn.Module:
    """A prepared model whose gradient is its input."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return accelerator.prepare(model)


def gradient(model: nn.Module) -> float:
    return next(model.parameters()).grad.item()


def one_each(accelerator: Accelerator) -> torch.Tensor:
    return torch.full((1, 1), float(1 + accelerator.process_index))


# ---------------------------------------------------------------- uneven inputs
def check_ranks_with_unequal_numbers_of_batches_can_be_joined() -> None:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
    model, loader = accelerator.prepare(nn.Linear(1, 1), DataLoader(torch.ones(3, 1)))
    seen = 0
    with accelerator.join_uneven_inputs([model]):
        for x in loader:
            accelerator.backward(model(x).sum())
            seen += 1
    assert seen == 2 - accelerator.process_index
    accelerator.wait_for_everyone()


def check_even_batches_can_be_overruled_within_a_join_and_only_there() -> None:
    accelerator = Accelerator()
    model, loader = accelerator.prepare(nn.Linear(1, 1), DataLoader(torch.ones(3, 1)))
    seen = 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        assert not loader.batch_sampler.even_batches
        for x in loader:
            accelerator.backward(model(x).sum())
            seen += 1
    assert seen == 2 - accelerator.process_index
    assert loader.batch_sampler.even_batches
    assert sum(1 for _ in loader) == 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(4, 1))


def check_a_join_says_what_it_cannot_overrule_or_do() -> None:
    accelerator = Accelerator()
    model, _ = accelerator.prepare(nn.Linear(1, 1), DataLoader(Stream()))
    with (
        pytest.warns(UserWarning, match="only supported for map-style datasets"),
        accelerator.join_uneven_inputs([model], even_batches=False),
    ):
        pass
    accelerator.state.distributed_type = DistributedType.FSDP
    assert accelerator.distributed_type is DistributedType.FSDP
    with (
        pytest.warns(UserWarning, match="only supported for multi-GPU"),
        accelerator.join_uneven_inputs([model]),
    ):
        pass


# ---------------------------------------------------------------- when gradients are averaged
def check_a_backward_can_average_what_was_computed_apart() -> None:
    accelerator = Accelerator()
    model = line(accelerator)
    losses = []
    for _ in range(2):
        with accelerator.no_sync(model):
            losses.append(model(one_each(accelerator)).sum())
    accelerator.backward(losses[0])
    assert gradient(model) == 1 + accelerator.process_index
    with accelerator.trigger_sync_in_backward(model):
        accelerator.backward(losses[1])
    assert gradient(model) == 2 * 1.5
    accelerator.backward(model(one_each(accelerator)).sum())
    assert gradient(model) == 3 * 1.5


def check_each_micro_batch_can_be_averaged_while_steps_wait() -> None:
    plugin = GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1.0))
    seen = []
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(one_each(accelerator)).sum())
            seen.append(gradient(model))
            optimizer.step()
    assert seen == [0.75, 1.5]
    assert next(model.parameters()).item() == -0.5


def check_the_trigger_of_any_rank_is_seen_by_all_once() -> None:
    accelerator = Accelerator()
    assert accelerator.check_trigger() is False
    if accelerator.process_index == 1:
        accelerator.set_trigger()
    assert accelerator.check_trigger() is True
    assert accelerator.check_trigger() is False


# ---------------------------------------------------------------- DistributedDataParallel
def check_gradients_are_views_unless_a_handler_says_otherwise() -> None:
    assert line(Accelerator()).gradient_as_bucket_view
    asked = DistributedDataParallelKwargs(bucket_cap_mb=15, find_unused_parameters=True)
    model = line(Accelerator(kwargs_handlers=[asked]))
    assert isinstance(model, DistributedDataParallel)
    assert model.bucket_bytes_cap == 15 * 1024 * 1024
    assert model.find_unused_parameters
    assert not model.gradient_as_bucket_view
    assert model.broadcast_buffers


def averaged(backwards: int = 1, **told) -> torch.Tensor:
    torch.manual_seed(0)
    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(**told)])
    model = accelerator.prepare(build(Recipe(dtype=torch.float32)))
    own = torch.Generator().manual_seed(accelerator.process_index)
    batch = torch.randn(4, 64, generator=own)
    for _ in range(backwards):
        model.zero_grad()
        accelerator.backward(model(batch).square().mean())
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def check_gradients_can_travel_in_16_bits() -> None:
    exact = averaged()
    for hook, bits in (("fp16", 11), (DDPCommunicationHookType.BF16, 8)):
        found = averaged(comm_hook=hook)
        assert not torch.equal(found, exact), hook
        assert torch.linalg.norm(found - exact) <= 2.0**-bits * torch.linalg.norm(exact)


def check_gradients_can_travel_as_low_rank_factors() -> None:
    exact = averaged()
    option = {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}
    for told in ({}, {"comm_wrapper": "fp16"}):
        found = averaged(8, comm_hook="power_sgd", comm_state_option=option, **told)
        assert not torch.equal(found, exact)
        assert torch.linalg.norm(found - exact) <= 0.5 * torch.linalg.norm(exact)
    with pytest.raises(SpecError, match="'zip' is none of"):
        averaged(comm_hook="zip")


def check_a_model_spread_over_devices_is_refused_where_several_train() -> None:
    model = nn.Linear(1, 1)
    model.hf_device_map = {"a": "cpu", "b": "meta"}
    with pytest.raises(SpecError, match="lies on several devices"):
        Accelerator().prepare(model)


def check_a_compiled_model_still_averages_after_it_was_unwrapped() -> None:
    accelerator = Accelerator(dynamo_backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its compiler
        model = line(accelerator)
        accelerator.unwrap_model(model)
        accelerator.backward(model(one_each(accelerator)).sum())
    assert gradient(model) == 1.5


# ---------------------------------------------------------------- local SGD
def check_local_sgd_averages_weights_every_few_steps_and_at_the_end() -> None:
    accelerator = Accelerator()
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1.0))
    weights = []
    with LocalSGD(accelerator, model, local_sgd_steps=2) as local:
        for _ in range(3):
            accelerator.backward(model(one_each(accelerator)).sum())
            optimizer.step()
            optimizer.zero_grad()
            local.step()
            weights.append(next(model.parameters()).item())
    own = 1.0 + accelerator.process_index
    assert weights == [-own, -3.0, -3.0 - own]
    assert next(model.parameters()).item() == -4.5
    accelerator.backward(model(one_each(accelerator)).sum())
    assert gradient(model) == 1.5


def check_local_sgd_that_is_off_trains_as_without_it() -> None:
    accelerator = Accelerator()
    model = line(accelerator)
    with LocalSGD(accelerator, model, local_sgd_steps=2, enabled=False) as local:
        accelerator.backward(model(one_each(accelerator)).sum())
        local.step()
    assert gradient(model) == 1.5
    with pytest.raises(SpecError, match="local_sgd_steps=0"):
        LocalSGD(accelerator, model, 0)
