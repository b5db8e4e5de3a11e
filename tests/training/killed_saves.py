"""Saves that are killed before each of their operations on files: killed_saves.py FOLDER.

A child saves 2 over 1 in a folder, and is killed before its n-th operation; then the folder must
load as 1 or as 2, whole. Repeated with n = 1, 2, ... until a child comes through. Prints JSON: for
each way to save, what was loaded after each kill.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch
from torch import nn

from nb_accelerate.training import Accelerator
from nb_accelerate.training.checkpoint import ProjectConfiguration, load

OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
MOST = 400


class Training:
    """All that it saves has one value, so that a mixture would be seen."""

    def __init__(self, value: float, folder: Path, *, named: bool) -> None:
        config = ProjectConfiguration(folder, automatic_checkpoint_naming=named, total_limit=1)
        self.folder = None if named else folder / "state"
        self.accelerator = Accelerator(project_config=config)
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=value, momentum=0.9)
        self.accelerator.register_for_checkpointing(self)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        nn.init.constant_(self.model.weight, value)
        torch.manual_seed(int(value))
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state) -> None:
        self.value = state["value"]

    def save(self) -> None:
        self.accelerator.save_state(self.folder, safe_serialization=self.value == 1)

    def seen(self) -> list[float]:
        rate = self.optimizer.param_groups[0]["lr"]
        return [self.model.weight.item(), rate, self.value, float(torch.initial_seed())]


class One:
    """One object in one file."""

    def __init__(self, value: float, folder: Path) -> None:
        self.path, self.value = folder / "object", value
        self.accelerator = Accelerator()

    def save(self) -> None:
        self.accelerator.save({"value": self.value}, self.path)


def die_before(number: int) -> None:
    """Let this process be gone before its n-th operation on files from now on."""
    left = number

    def watch(event: str, args) -> None:
        nonlocal left
        if event in OPERATIONS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), 9)

    sys.addaudithook(watch)


def killed_everywhere(make, read, folder: Path) -> list:
    """What is read after a kill before each operation, and after a save that came through."""
    before = folder.with_name(f"{folder.name}-before")
    before.mkdir()
    make(1, before).save()
    found = []
    for number in range(1, MOST):
        shutil.copytree(before, folder)
        child = os.fork()
        if not child:
            second = make(2, folder)
            die_before(number)
            second.save()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found.append(read(folder))
        again = make(3, folder)
        again.save()  # whatever was left does not stand in the way
        assert read(folder) == found[-1] or read(folder)[0] == 3, (number, read(folder))
        litter = [p.name for p in folder.rglob(".*")]
        assert not litter, (number, litter)
        shutil.rmtree(folder)
        if status == 0:
            return found
    raise AssertionError(f"not through after {MOST} operations")


def state(*, named: bool):
    def make(value, folder):
        return Training(value, folder, named=named)

    def read(folder):
        training = make(9, folder)
        training.accelerator.load_state(training.folder)
        return training.seen()

    return make, read


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    print(json.dumps({
        "over an old one": killed_everywhere(*state(named=False), folder / "a"),
        "with a limit": killed_everywhere(*state(named=True), folder / "b"),
        "an object": killed_everywhere(One, lambda f: [load(f / "object")["value"]], folder / "c"),
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
