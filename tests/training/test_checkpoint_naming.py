"""Automatically named checkpoints: their numbers, how many are kept, and which is the newest."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from nb_accelerate.errors import SpecError
from nb_accelerate.training import Accelerator
from nb_accelerate.training.checkpoint import ProjectConfiguration


def named(folder, **settings) -> ProjectConfiguration:
    return ProjectConfiguration(folder, automatic_checkpoint_naming=True, **settings)


def project(folder, value=0.0, **settings):
    accelerator = Accelerator(project_config=named(folder, **settings))
    model = accelerator.prepare(nn.Linear(1, 1))
    nn.init.constant_(model.weight, value)
    return accelerator, model


def numbers_in(folder) -> list[int]:
    return sorted(int(p.name.split("_")[1]) for p in (Path(folder) / "checkpoints").iterdir())


def test_checkpoints_are_numbered_from_the_iteration_on(tmp_path) -> None:
    accelerator, _ = project(tmp_path)
    assert accelerator.save_state() == tmp_path / "checkpoints" / "checkpoint_0"
    assert accelerator.save_iteration == 1
    accelerator.save_state("elsewhere")  # as Accelerate: the automatic name overrules it
    other, _ = project(tmp_path / "other", iteration=7)
    other.save_state()
    assert numbers_in(tmp_path) == [0, 1]
    assert numbers_in(tmp_path / "other") == [7]


def test_a_new_training_goes_on_after_the_highest_number(tmp_path) -> None:
    first, _ = project(tmp_path, value=1)
    for _ in range(11):
        first.save_state()
    second, model = project(tmp_path, value=2, total_limit=3)
    second.load_state()
    assert model.weight.item() == 1
    assert second.save_iteration == 11
    nn.init.constant_(model.weight, 3)
    second.save_state()
    assert numbers_in(tmp_path) == [9, 10, 11]
    third, model = project(tmp_path)
    third.load_state()
    assert model.weight.item() == 3


def test_an_older_checkpoint_is_loaded_without_hiding_newer_ones(tmp_path) -> None:
    accelerator, model = project(tmp_path)
    for value in range(3):
        nn.init.constant_(model.weight, value)
        accelerator.save_state()
    again, model = project(tmp_path)
    again.load_state(tmp_path / "checkpoints" / "checkpoint_1")
    assert (model.weight.item(), again.save_iteration) == (1, 2)
    again.save_state()
    assert numbers_in(tmp_path) == [0, 1, 2, 3]
    again.load_state()
    assert model.weight.item() == 1


def test_the_oldest_goes_only_when_the_new_one_is_complete(tmp_path) -> None:
    accelerator, _ = project(tmp_path, total_limit=1)
    accelerator.save_state()
    there = []
    old = tmp_path / "checkpoints" / "checkpoint_0"
    accelerator.register_save_state_pre_hook(lambda *_: there.append(old.exists()))
    accelerator.save_state()
    assert there == [True]
    assert numbers_in(tmp_path) == [1]

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    accelerator.register_save_state_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        accelerator.save_state()
    assert numbers_in(tmp_path) == [1]
    assert accelerator.save_iteration == 2


def test_other_things_among_the_checkpoints_are_left_alone(tmp_path) -> None:
    folder = tmp_path / "checkpoints"
    (folder / "best_99").mkdir(parents=True)
    (folder / "checkpoint_12").write_text("a file")
    accelerator, _ = project(tmp_path, total_limit=1)
    accelerator.save_state()
    accelerator.save_state()
    assert sorted(p.name for p in folder.iterdir()) == ["best_99", "checkpoint_1", "checkpoint_12"]
    accelerator.load_state()


def test_a_number_that_another_process_has_taken_meanwhile_is_refused(tmp_path) -> None:
    accelerator, _ = project(tmp_path)

    def be_faster(models, weights, output_dir) -> None:
        other = tmp_path / "checkpoints" / "checkpoint_0"
        other.mkdir()
        (other / "theirs").write_text("")

    accelerator.register_save_state_pre_hook(be_faster)
    with pytest.raises(ValueError, match="another process has made it"):
        accelerator.save_state()
    folder = tmp_path / "checkpoints"
    assert [str(p.relative_to(folder)) for p in sorted(folder.rglob("*"))] == [
        "checkpoint_0", "checkpoint_0/theirs",
    ]  # fmt: skip


def test_the_newest_is_the_newest_that_is_complete(tmp_path) -> None:
    accelerator, model = project(tmp_path)
    for value in range(4):
        nn.init.constant_(model.weight, value)
        accelerator.save_state()
    folder = tmp_path / "checkpoints"
    (folder / "checkpoint_3" / "model.safetensors").unlink()
    (folder / "checkpoint_2" / "random_states_0.pkl").write_bytes(b"half")
    with pytest.warns(UserWarning, match="Not complete, and left out: .*checkpoint_3, .*_2"):
        accelerator.load_state()
    assert model.weight.item() == 1


def test_where_there_is_no_complete_checkpoint_none_is_loaded(tmp_path) -> None:
    accelerator, _ = project(tmp_path)
    with pytest.raises(SpecError, match="no complete one"):
        accelerator.load_state()
    (tmp_path / "checkpoints" / "checkpoint_0").mkdir(parents=True)
    with pytest.raises(SpecError, match="no complete one"):
        accelerator.load_state()


def test_the_arguments_of_an_accelerator_and_of_its_project_agree(tmp_path) -> None:
    accelerator = Accelerator(project_dir=tmp_path)
    assert (accelerator.project_dir, accelerator.logging_dir) == (tmp_path, tmp_path)
    config = ProjectConfiguration("a")
    accelerator = Accelerator(project_dir="b", project_config=config, logging_dir="c")
    assert accelerator.project_configuration is config
    assert (accelerator.project_dir, accelerator.logging_dir) == ("a", "c")
    config = ProjectConfiguration(logging_dir="d", total_limit=3)
    accelerator = Accelerator(project_dir="b", project_config=config)
    assert (accelerator.project_dir, accelerator.logging_dir) == ("b", "d")
    travelled = pickle.loads(pickle.dumps(accelerator))
    assert travelled.project_configuration == config
    assert Accelerator().project_dir is None


def test_a_project_that_cannot_be_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="at least one checkpoint"):
        ProjectConfiguration(total_limit=0)
    with pytest.raises(ValueError, match="no project_dir"):
        Accelerator(project_config=named(None)).save_state()


def test_a_relative_folder_and_a_link_lead_to_one_place(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    accelerator, model = project("here", value=5)
    assert accelerator.save_state() == Path("here/checkpoints/checkpoint_0")
    Path("link").symlink_to("here/checkpoints/checkpoint_0")
    nn.init.constant_(model.weight, 6)
    plain = Accelerator()
    plain.prepare(model)
    plain.save_state("link")
    assert Path("link").is_symlink()
    nn.init.zeros_(model.weight)
    accelerator.load_state()
    assert torch.equal(model.weight, torch.full((1, 1), 6.0))
