"""Training loops that no one here wrote run on ours, and come to what they come to on Accelerate.

Each runs twice, in interpreters of its own: on 2 ranks of torchrun with Accelerate itself, and on 2
ranks of a launch with `nb_accelerate.compat` installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent

LIMIT_SECONDS = 60

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]

needed = {"accelerate": "1.15.0", "transformers": "5", "peft": "0.17"}


def missing() -> list[str]:
    found = {d.metadata["Name"] for d in importlib.metadata.distributions(path=sys.path)}
    return sorted(needed.keys() - found)


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")

Told = dict[str, Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Told]:
    """What a training told, by its kind and by whose Accelerator it ran on."""

    @cache
    def tell(kind: str, whose: str) -> Told:
        folder = tmp_path_factory.mktemp(f"{kind}-{whose}")
        script = [str(HERE / "trained.py"), kind, str(folder)]
        command = [*TORCHRUN, *script] if whose == "theirs" else [*script, "--ours"]
        run_bounded([sys.executable, *command], folder)
        return json.loads((folder / "told.json").read_text(encoding="utf-8"))

    return tell


def run_bounded(command: list[str], folder: Path) -> None:
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "PYTHONPATH": str(HERE.parents[1])},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        assert code == 0, output.read()


@pytest.fixture(params=["gpt2", "lora"])
def both(request: pytest.FixtureRequest, told: Callable[[str, str], Told]) -> tuple[Told, Told]:
    """(what Accelerate's training told, what ours told)."""
    return told(request.param, "theirs"), told(request.param, "ours")


def test_each_ran_on_its_own_accelerator_on_two_ranks(both: tuple[Told, Told]) -> None:
    theirs, ours = both
    assert (theirs["module"], theirs["world_size"]) == ("accelerate.accelerator", 2)
    assert (ours["module"], ours["world_size"]) == ("nb_accelerate.training.accelerator", 2)


def test_trainer_logs_the_same_losses_norms_and_rates(both: tuple[Told, Told]) -> None:
    theirs, ours = (numbers(told["log"]) for told in both)
    assert len(theirs) > 100
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7, nan_ok=True)


def test_trainer_learns_and_a_resumed_run_ends_where_the_uninterrupted_one_did(
    both: tuple[Told, Told],
) -> None:
    losses = [loss for loss, *_ in both[1]["log"] if loss is not None]
    assert losses[11] < losses[0] - 0.08
    assert losses[12:] == losses[:12]  # the first half of it is read from the checkpoint


def test_trainer_ends_with_the_same_weights(both: tuple[Told, Told]) -> None:
    theirs, ours = (told["weights"] for told in both)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_trainer_saves_the_same_files(both: tuple[Told, Told]) -> None:
    theirs, ours = both
    assert ours["files"] == theirs["files"]


def numbers(log: list[list[float | None]]) -> list[float]:
    """Flat, with not-a-number for what an entry lacks."""
    return [float("nan") if value is None else value for entry in log for value in entry]
