"""Checkpoints of one process: what is in a folder, and what is made of it again."""

from __future__ import annotations

import json
import pickle
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nb_accelerate.errors import CheckpointError, SpecError, UnsafeCheckpoint
from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.training import Accelerator
from nb_accelerate.training.checkpoint import (
    load,
    load_accelerator_state,
    load_custom_state,
    save,
    save_accelerator_state,
    save_custom_state,
)


class Counter:
    def __init__(self, value=0) -> None:
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state) -> None:
        self.value = state["value"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight


def training(*models: nn.Module):
    accelerator = Accelerator()
    models = models or (nn.Linear(4, 2), nn.Linear(2, 2))
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]
    schedules = [torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5) for one in optimizers]
    accelerator.prepare(*models, *optimizers, *schedules, DataLoader(TensorDataset(torch.ones(4))))
    return accelerator, models, optimizers, schedules


def trained(*models: nn.Module):
    accelerator, models, optimizers, schedules = training(*models)
    for model, optimizer, schedule in zip(models, optimizers, schedules, strict=True):
        sum(p.square().sum() for p in model.parameters()).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return accelerator, models, optimizers, schedules


def numbers(*things) -> list:
    """All that is in state dicts, as plain numbers."""
    found = []
    for thing in things:
        found += [t.tolist() for t in thing.values()] if isinstance(thing, dict) else [thing]
    return found


def names_in(folder) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


# ---------------------------------------------------------------- what is in a folder
@pytest.mark.parametrize("safe", [True, False])
def test_a_folder_has_the_files_of_accelerate(tmp_path, safe) -> None:
    accelerator, *_ = trained()
    accelerator.register_for_checkpointing(Counter())
    folder = accelerator.save_state(tmp_path / "x", safe_serialization=safe)
    assert folder == tmp_path / "x"
    weights = ["model.safetensors", "model_1.safetensors"]
    if not safe:
        weights = ["pytorch_model.bin", "pytorch_model_1.bin"]
    expected = [
        *weights, "optimizer.bin", "optimizer_1.bin", "scheduler.bin", "scheduler_1.bin",
        "custom_checkpoint_0.pkl", "random_states_0.pkl", "nb_accelerate.json",
    ]  # fmt: skip
    assert set(expected) <= set(names_in(folder)) <= {*expected, "sampler.bin"}
    states = load(folder / "random_states_0.pkl")
    keys = {"step", "random_state", "numpy_random_seed", "torch_manual_seed", "nb_accelerate"}
    assert set(states) == keys


@pytest.mark.parametrize("safe", [True, False])
def test_everything_is_as_it_was_when_it_was_saved(tmp_path, safe) -> None:
    accelerator, models, optimizers, schedules = trained()
    counter = Counter(3)
    accelerator.register_for_checkpointing(counter)
    accelerator.save_state(tmp_path, safe_serialization=safe)
    drawn = random.random(), np.random.rand(), torch.rand(2).tolist()

    other, new_models, new_optimizers, new_schedules = training()
    new_counter = Counter()
    other.register_for_checkpointing(new_counter)
    other.load_state(tmp_path)
    assert (random.random(), np.random.rand(), torch.rand(2).tolist()) == drawn
    assert new_counter.value == 3
    for old, new in zip(models, new_models, strict=True):
        assert numbers(old.state_dict()) == numbers(new.state_dict())
    for old, new in zip(optimizers, new_optimizers, strict=True):
        ours, theirs = new.state_dict(), old.state_dict()
        assert ours["param_groups"] == theirs["param_groups"]
        assert numbers(*ours["state"].values()) == numbers(*theirs["state"].values())
    for old, new in zip(schedules, new_schedules, strict=True):
        assert old.state_dict() == new.state_dict()


@pytest.mark.parametrize("safe", [True, False])
def test_tied_weights_are_tied_and_equal_after_loading(tmp_path, safe) -> None:
    accelerator, (model,), *_ = trained(Tied())
    expected = numbers(model.state_dict())
    accelerator.save_state(tmp_path, safe_serialization=safe)
    if safe:
        assert "second.weight" not in load_file(tmp_path / "model.safetensors")
    other, (new,), *_ = training(Tied())
    other.load_state(tmp_path)
    assert numbers(new.state_dict()) == expected
    assert new.first.weight is new.second.weight


def test_views_of_one_memory_are_all_saved(tmp_path) -> None:
    whole = torch.arange(6.0)
    state = {"left": whole[:3], "right": whole[3:], "turned": whole.view(2, 3).T}
    save(state, tmp_path / "x", safe_serialization=True)
    loaded = load_file(tmp_path / "x")
    assert {name: t.tolist() for name, t in loaded.items()} == {
        name: t.tolist() for name, t in state.items()
    }


def test_names_that_wrappers_have_put_in_are_understood(tmp_path) -> None:
    accelerator, (model,), *_ = trained(nn.Linear(2, 2))
    wrapped = {f"module._orig_mod.{name}": value for name, value in model.state_dict().items()}
    accelerator.save_state(tmp_path, safe_serialization=False)
    torch.save(wrapped, tmp_path / "pytorch_model.bin")
    other, (new,), *_ = training(nn.Linear(2, 2))
    other.load_state(tmp_path)
    assert numbers(new.state_dict()) == numbers(model.state_dict())


def test_a_compiled_model_and_a_plain_one_load_each_others_weights(tmp_path) -> None:
    model = nn.Linear(2, 2)
    first = Accelerator()
    first.prepare(torch.compile(model, backend="eager"))
    first.save_state(tmp_path)
    plain, (new,), *_ = training(nn.Linear(2, 2))
    for name in ("optimizer.bin", "scheduler.bin"):
        torch.save((plain._optimizers if name[0] == "o" else plain._schedulers)[0].state_dict(),
                   tmp_path / name)  # fmt: skip
    plain.load_state(tmp_path)
    assert numbers(new.state_dict()) == numbers(model.state_dict())


def test_shards_with_an_index_are_read_as_one_model(tmp_path) -> None:
    accelerator, (model,), *_ = trained(nn.Linear(8, 8))
    accelerator.save_state(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    accelerator.save_model(model, tmp_path, max_shard_size=100)
    assert (tmp_path / "model.safetensors.index.json").exists()
    expected = numbers(model.state_dict())
    nn.init.zeros_(model.weight)
    accelerator.load_state(tmp_path)
    assert numbers(model.state_dict()) == expected


def test_what_is_not_strict_passes_to_the_model(tmp_path) -> None:
    accelerator, (model,), *_ = trained(nn.Linear(2, 2))
    accelerator.save_state(tmp_path)
    other, _, *_ = training(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state(tmp_path)
    other.load_state(tmp_path, strict=False)
    with pytest.raises(TypeError, match="Unsupported optimizer map location passed"):
        accelerator.load_state(tmp_path, map_location="invalid")
    nn.init.zeros_(model.weight)
    accelerator.load_state(tmp_path, map_location="on_device")
    assert model.weight.abs().sum() > 0


def test_the_scale_of_the_loss_is_kept(tmp_path) -> None:
    accelerator, *_ = trained()
    accelerator._here.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    accelerator.save_state(tmp_path)
    other, *_ = training()
    other._here.scaler = torch.amp.GradScaler("cpu")
    other.load_state(tmp_path)
    assert other.scaler.get_scale() == 8.0
    (tmp_path / "scaler.pt").unlink()
    with pytest.warns(UserWarning, match="not saved in fp16"):
        other.load_state(tmp_path)


# ---------------------------------------------------------------- saving over an old one
def test_a_new_checkpoint_leaves_nothing_of_the_old_one_but_the_users_files(tmp_path) -> None:
    accelerator, (model, _), *_ = trained()
    accelerator.register_for_checkpointing(Counter(1), Counter(2))
    accelerator.save_state(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "random_states_7.pkl").write_bytes(b"of more ranks")

    other, (model, _), *_ = trained()
    other.save_state(tmp_path, safe_serialization=False)
    names = names_in(tmp_path)
    assert "notes.txt" in names
    assert "pytorch_model.bin" in names
    assert not {"model.safetensors", "custom_checkpoint_0.pkl", "random_states_7.pkl"} & set(names)
    assert not [name for name in names if name.startswith(".")]
    expected = numbers(model.state_dict())
    nn.init.zeros_(model.weight)
    other.load_state(tmp_path)
    assert numbers(model.state_dict()) == expected


def test_a_failing_save_leaves_the_old_checkpoint_as_it_was(tmp_path) -> None:
    accelerator, *_ = trained()
    accelerator.save_state(tmp_path / "x")
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    accelerator.register_save_state_pre_hook(fail)
    for folder in (tmp_path / "x", tmp_path / "y"):
        with pytest.raises(ZeroDivisionError):
            accelerator.save_state(folder)
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before
    assert names_in(tmp_path) == ["x"]


def test_a_position_that_accelerate_has_written_over_is_not_used(tmp_path) -> None:
    accelerator, *_ = trained()
    accelerator.gradient_accumulation_steps = 2
    with accelerator.accumulate(accelerator._models[0]):
        pass
    assert accelerator.step == 1
    accelerator.save_state(tmp_path)
    states = load(tmp_path / "random_states_0.pkl")
    del states["nb_accelerate"]  # as Accelerate leaves it
    torch.save(states | {"step": 0}, tmp_path / "random_states_0.pkl")
    accelerator.load_state(tmp_path)
    assert accelerator.step == 0
    assert accelerator._here.accumulation.windows == []


# ---------------------------------------------------------------- hooks and objects
def test_hooks_write_into_the_checkpoint_and_take_weights_out(tmp_path) -> None:
    accelerator, (first, _), *_ = trained()
    seen = []

    def on_save(models, weights, output_dir) -> None:
        seen.append([type(m).__name__ for m in models])
        assert Path(output_dir).name == "checkpoint-12"
        (Path(output_dir) / "own").mkdir()
        torch.save(weights.pop(0), Path(output_dir) / "own" / "weights.pt")

    def on_load(models, input_dir) -> None:
        models.pop(0).load_state_dict(torch.load(Path(input_dir) / "own" / "weights.pt"))

    saving = accelerator.register_save_state_pre_hook(on_save)
    loading = accelerator.register_load_state_pre_hook(on_load)
    expected = numbers(first.state_dict())
    for _ in range(2):  # into a new folder, and over an old one
        folder = accelerator.save_state(tmp_path / "checkpoint-12")
        assert (folder / "own" / "weights.pt").exists()
        assert not (folder / "model_1.safetensors").exists()
        nn.init.zeros_(first.weight)
        accelerator.load_state(folder)
        assert numbers(first.state_dict()) == expected
    saving.remove()
    loading.remove()
    accelerator.save_state(tmp_path / "checkpoint-12")
    assert seen == [["Linear", "Linear"]] * 2
    assert (folder / "model_1.safetensors").exists()
    assert len(accelerator._models) == 2


def test_objects_without_a_state_are_all_named(tmp_path) -> None:
    accelerator = Accelerator()
    with pytest.raises(ValueError, match="Item at index 0: Tensor; Item at index 2: int"):
        accelerator.register_for_checkpointing(torch.ones(1), Counter(), 3)
    assert accelerator._custom_objects == []
    accelerator.register_for_checkpointing(Counter())
    accelerator.save_state(tmp_path)
    with pytest.raises(RuntimeError, match=r"states of 1 objects.*called for 0"):
        Accelerator().load_state(tmp_path)


def test_a_folder_that_lacks_what_was_prepared_is_refused_with_what_there_is(tmp_path) -> None:
    accelerator, *_ = trained(nn.Linear(2, 2))
    accelerator.save_state(tmp_path)
    other, *_ = training(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"no weights for model 1.*model\.safetensors"):
        other.load_state(tmp_path)
    (tmp_path / "optimizer.bin").unlink()
    with pytest.raises(CheckpointError, match=r"has no optimizer\.bin"):
        accelerator.load_state(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        accelerator.load_state(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="needs the folder to load"):
        accelerator.load_state()
    with pytest.raises(ValueError, match="needs a folder to write to"):
        accelerator.save_state()


# ---------------------------------------------------------------- code in files
class Run:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def test_a_file_that_would_run_code_is_refused_and_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    accelerator, *_ = trained()
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    accelerator.save_state("x")
    for name in names_in("x"):
        if not name.endswith((".safetensors", ".json", "sampler.bin")):
            accelerator.save_state("x")
            torch.save(Run(), f"x/{name}")
            with pytest.raises(UnsafeCheckpoint, match=rf"{re.escape(name)} holds .*pathlib\.Path"):
                accelerator.load_state("x")
            with pytest.raises(pickle.UnpicklingError):
                load(f"x/{name}")
    assert not Path("ran").exists()


def test_an_object_in_a_custom_state_is_loaded_when_it_is_allowed(tmp_path) -> None:
    accelerator = Accelerator()
    counter = Counter(Path("some/place"))
    accelerator.register_for_checkpointing(counter)
    accelerator.save_state(tmp_path)
    counter.value = None
    with pytest.raises(
        UnsafeCheckpoint, match=r"custom_checkpoint_0\.pkl holds .*pathlib\..*weights_only"
    ):
        accelerator.load_state(tmp_path)
    accelerator.load_state(tmp_path, load_kwargs={"weights_only": False})
    assert counter.value == Path("some/place")


def test_numbers_of_numpy_are_no_code(tmp_path) -> None:
    array = np.arange(3, dtype=np.int16)
    save({"array": array, "scalar": np.float32(2.5), "bool": np.bool_(True)}, tmp_path / "x")
    loaded = load(tmp_path / "x")
    assert loaded["array"].tolist() == [0, 1, 2]
    assert loaded["array"].dtype == np.int16
    assert (loaded["scalar"], loaded["bool"]) == (2.5, True)


# ---------------------------------------------------------------- models and objects alone
def test_a_large_model_is_written_in_shards_and_old_ones_are_removed(tmp_path) -> None:
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 40))
    accelerator.save_model(model, tmp_path / "m", max_shard_size="170B")
    names = names_in(tmp_path / "m")
    assert names == [
        "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    state = model.state_dict()
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for t in state.values())
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "m" / file)[name], state[name])
    assert set(index["weight_map"]) == set(state)
    accelerator.save_model(model, tmp_path / "m", max_shard_size="400B", safe_serialization=False)
    accelerator.save_model(model, tmp_path / "m")
    names = names_in(tmp_path / "m")
    assert "model.safetensors" in names
    assert not [name for name in names if name.startswith("model-")]
    assert "pytorch_model.bin.index.json" in names
    accelerator.save_model(model, tmp_path / "m", safe_serialization=False)
    assert names_in(tmp_path / "m") == ["model.safetensors", "pytorch_model.bin"]


def test_tied_weights_come_into_one_shard(tmp_path) -> None:
    accelerator = Accelerator()
    model = Tied()
    accelerator.save_model(model, tmp_path / "bin", max_shard_size=40, safe_serialization=False)
    index = json.loads((tmp_path / "bin" / "pytorch_model.bin.index.json").read_text())
    places = index["weight_map"]
    assert places["first.weight"] == places["second.weight"]
    assert index["metadata"]["total_size"] == 4 * (9 + 3 + 3)
    accelerator.save_model(model, tmp_path / "safe")
    assert sorted(load_file(tmp_path / "safe" / "model.safetensors")) == [
        "first.bias", "first.weight", "second.bias",
    ]  # fmt: skip


def test_a_model_that_cannot_be_saved_is_refused(tmp_path) -> None:
    accelerator = Accelerator()
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"but .*file is a file"):
        accelerator.save_model(nn.Linear(1, 1), tmp_path / "file")
    with pytest.raises(RuntimeError, match="meta device"):
        accelerator.save_model(nn.Linear(1, 1, device="meta"), tmp_path / "m")
    for size in ("10 parrots", 0, "-1GB"):
        with pytest.raises(SpecError, match="is no size"):
            accelerator.save_model(nn.Linear(1, 1), tmp_path / "m", max_shard_size=size)
    assert names_in(tmp_path) == ["file"]


def test_an_object_is_written_whole_or_not_at_all(tmp_path) -> None:
    accelerator = Accelerator()
    accelerator.save({"x": 1}, tmp_path / "x")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        accelerator.save({"x": lambda: None}, tmp_path / "x")
    assert load(tmp_path / "x") == {"x": 1}
    assert names_in(tmp_path) == ["x"]
    with (tmp_path / "y").open("wb") as file:
        accelerator.save({"y": torch.ones(1)}, file, safe_serialization=True)
    assert load_file(tmp_path / "y")["y"].tolist() == [1]
    with pytest.raises(SpecError, match="but the state has y"):
        accelerator.save({"y": 3}, tmp_path / "y", safe_serialization=True)


def test_a_state_dict_has_the_names_that_the_user_gave() -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(2, 2))
    assert list(accelerator.get_state_dict(model)) == ["weight", "bias"]
    assert list(accelerator.get_state_dict(model, unwrap=False)) == ["weight", "bias"]


def test_other_ranks_write_nothing_that_is_the_main_ones(tmp_path) -> None:
    with acting_as(Replica(rank=1, local_rank=0)):
        save([1], tmp_path / "x")
        save([1], tmp_path / "y", save_on_each_node=True)
    assert names_in(tmp_path) == ["y"]


# ---------------------------------------------------------------- Accelerate's functions
def test_the_functions_of_accelerate_write_and_read_one_folder(tmp_path) -> None:
    _, models, optimizers, schedules = trained()
    states = [model.state_dict() for model in models]
    expected = numbers(*states)
    where = save_accelerator_state(tmp_path, states, optimizers, schedules, [], 0, 5)
    assert where == tmp_path
    drawn = torch.rand(1)
    for model in models:
        nn.init.zeros_(model.weight)
    found = load_accelerator_state(tmp_path, models, optimizers, schedules, [], 0, strict=True)
    assert found == {"step": 5}
    assert numbers(*[model.state_dict() for model in models]) == expected
    assert torch.rand(1) == drawn
    save_custom_state(Counter(4), tmp_path, 2)
    counter = Counter()
    load_custom_state(counter, tmp_path, 2)
    assert counter.value == 4
