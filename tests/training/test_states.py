"""Accelerate's state objects: views on the replica that they are used on."""

from __future__ import annotations

import contextvars
import copy
import gc
import multiprocessing
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from nb_accelerate.errors import SpecError
from nb_accelerate.replica import Replica, acting_as, current_replica
from nb_accelerate.training import Accelerator
from nb_accelerate.training.gradient_state import GradientState
from nb_accelerate.training.plugins import GradientAccumulationPlugin
from nb_accelerate.training.states import AcceleratorState, PartialState, is_initialized


@pytest.fixture(autouse=True)
def _on_a_replica_of_its_own():
    with acting_as(Replica(device="cpu")):
        yield


def test_a_partial_state_tells_who_this_replica_is() -> None:
    assert PartialState._shared_state == {}
    state = PartialState()
    assert (state.num_processes, state.process_index, state.local_process_index) == (1, 0, 0)
    assert state.is_main_process
    assert state.is_last_process
    assert state.device == torch.device("cpu")
    assert state.backend is None
    assert state.initialized
    assert not is_initialized()
    assert repr(state) == "<PartialState: rank 0 of 1 on 'cpu', NO>"


def test_an_unknown_attribute_is_refused_and_one_that_was_set_is_seen_by_all_views() -> None:
    state = PartialState()
    with pytest.raises(AttributeError, match="'PartialState' object has no attribute 'other'"):
        _ = state.other
    state.other = "mine"
    assert PartialState().other == "mine"
    with acting_as(Replica(device="cpu")):
        assert not hasattr(PartialState(), "other")


def test_a_state_that_was_reset_says_so() -> None:
    state = PartialState()
    state._reset_state()
    with pytest.raises(AttributeError, match=r"`PartialState` .*'num_processes'.*_reset_state"):
        _ = state.num_processes
    assert repr(state) == "<PartialState: not initialized>"
    PartialState()
    assert state.num_processes == 1


def test_an_accelerator_state_needs_an_accelerator() -> None:
    with pytest.raises(ValueError, match="there is none"):
        AcceleratorState()
    Accelerator(mixed_precision="bf16")
    assert AcceleratorState().mixed_precision == "bf16"
    assert AcceleratorState("bf16").deepspeed_plugin is None
    with pytest.raises(ValueError, match="computes in 'bf16'"):
        AcceleratorState(mixed_precision="no")


def test_it_stays_when_the_accelerator_is_gone_and_keeps_no_model_alive() -> None:
    accelerator = Accelerator(mixed_precision="bf16")
    model = accelerator.prepare(nn.Linear(1, 1))
    state = GradientState()
    weight = weakref.ref(model.weight)
    del accelerator, model
    gc.collect()
    assert weight() is None
    assert AcceleratorState().mixed_precision == "bf16"
    assert not state.in_dataloader


def test_each_accelerator_has_a_state_of_its_own_and_the_views_show_the_newest() -> None:
    first = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    second = Accelerator(gradient_accumulation_steps=3)
    assert (first.state.mixed_precision, second.state.mixed_precision) == ("bf16", "no")
    assert (first.gradient_state.num_steps, second.gradient_state.num_steps) == (2, 3)
    assert (AcceleratorState().mixed_precision, GradientState().num_steps) == ("no", 3)


def test_after_a_reset_an_accelerator_refuses_to_work_until_another_is_made() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(1, 1))
    AcceleratorState._reset_state()
    with pytest.raises(AttributeError, match=r"`AcceleratorState` .*Make a new Accelerator"):
        accelerator.prepare(nn.Linear(1, 1))
    assert not accelerator.state.initialized
    Accelerator()
    assert accelerator._models == [model]
    assert accelerator.gradient_accumulation_steps == 2


def test_a_reset_on_one_replica_does_not_touch_another() -> None:
    accelerator = Accelerator()
    with acting_as(Replica(device="cpu")):
        AcceleratorState._reset_state(True)
    assert accelerator.num_processes == 1


def test_what_is_set_on_an_accelerators_state_is_its_own() -> None:
    first, second = Accelerator(), Accelerator()
    first.state.note = "mine"
    assert first.state.note == "mine"
    assert not hasattr(second.state, "note")
    assert copy.copy(first).state.__dict__ == second.state.__dict__
    assert pickle.loads(pickle.dumps(second)).state.__dict__ == second.state.__dict__


def test_the_gradient_state_shows_the_loaders_that_run() -> None:
    accelerator = Accelerator()
    outer, inner = accelerator.prepare(DataLoader(range(3)), DataLoader(range(2)))
    state = accelerator.gradient_state
    seen = []
    for _ in outer:
        seen.append((state.active_dataloader is outer, state.end_of_dataloader))
        for _ in inner:
            assert state.active_dataloader is inner
            assert state.dataloader_references == [None, outer, inner]
    assert seen == [(True, False), (True, False), (True, True)]
    assert state.active_dataloader is None
    assert state.remainder == -1


def test_the_gradient_state_is_written_through() -> None:
    accelerator = Accelerator()
    state = GradientState()
    accelerator.gradient_accumulation_steps = 4
    accelerator.sync_gradients = False
    assert (state.num_steps, state.sync_gradients) == (4, False)
    state._set_sync_gradients(True)
    assert accelerator.sync_gradients
    GradientState(GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=False))
    assert accelerator.gradient_accumulation_steps == 3
    assert state.plugin_kwargs == {"num_steps": 3, "sync_with_dataloader": False}


def test_what_accelerates_variables_ask_for_is_done(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    accelerator = Accelerator(gradient_accumulation_steps=5)
    assert accelerator.mixed_precision == "bf16"
    assert accelerator.gradient_accumulation_steps == 3
    assert accelerator.state._cpu
    assert Accelerator(mixed_precision="no").mixed_precision == "no"
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "many")
    with pytest.raises(SpecError, match="STEPS='many'"):
        Accelerator()


def test_a_device_of_the_environment_is_taken_outside_of_launches(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu:3")
    assert str(Accelerator().device) == "cpu", "a launch has said where this replica computes"
    outside = contextvars.Context()
    assert outside.run(lambda: str(Accelerator().device)) == "cpu:3"


def tell_of_it(accelerator: Accelerator, answers) -> None:
    answers.put((accelerator.num_processes, len(accelerator._models), current_replica().rank))


def test_a_forked_process_has_nothing_prepared() -> None:
    accelerator = Accelerator()
    accelerator.prepare(nn.Linear(1, 1))
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    child = fork.Process(target=tell_of_it, args=(accelerator, answers))
    child.start()
    assert answers.get(timeout=20) == (1, 0, 0)
    child.join(20)
    assert len(accelerator._models) == 1
