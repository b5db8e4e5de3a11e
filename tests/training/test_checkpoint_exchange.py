"""Folders go both ways between Accelerate and this package, bit for bit, in the midst of an epoch.

Accelerate runs in interpreters of its own; nothing here imports it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)

STATES = ("weights", "other", "optimizer", "second", "schedule", "random", "step")


WAYS = {
    f"{name} {ranks}": {"ranks": ranks, **more}
    for ranks in (1, 2)
    for name, more in (
        ("safetensors", {}),
        ("torch", {"safe": False}),
        ("accumulated", {"accumulation": 2}),
        ("stateful", {"stateful": True}),
    )
}


def trainings_by(library: str, does: str, states: Path, folder: Path) -> dict[str, list[dict]]:
    """Save or load all ways in one interpreter; what each rank has seen, by way."""
    jobs = {
        way: {"folder": str(folder / way), does: str(states / way), **more}
        for way, more in WAYS.items()
    }
    known = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    done = subprocess.run(
        [sys.executable, str(HERE / "exchange.py"), library, json.dumps(list(jobs.values()))],
        env=known | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    paths = {
        way: [folder / way / f"rank{r}.json" for r in range(WAYS[way]["ranks"])] for way in jobs
    }
    assert all(path.exists() for one in paths.values() for path in one), done.stderr + done.stdout
    return {way: [json.loads(path.read_text()) for path in one] for way, one in paths.items()}


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[tuple[str, ...], dict[str, list[dict]]]:
    """By who saved, or by who saved and who loaded."""
    root = tmp_path_factory.mktemp("exchange")
    saved = {
        (writer,): trainings_by(writer, "save", root / writer, root / f"by {writer}")
        for writer in ("accelerate", "ours")
    }
    loaded = {
        (writer, reader): trainings_by(reader, "load", root / writer, root / f"{writer} {reader}")
        for writer, reader in (
            ("accelerate", "ours"), ("ours", "accelerate"), ("accelerate", "accelerate"),
        )
    }  # fmt: skip
    return saved | loaded


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("writer", "reader"), [("accelerate", "ours"), ("ours", "accelerate")])
def test_a_folder_of_one_is_loaded_by_the_other(seen, writer, reader, way) -> None:
    for before, after in zip(seen[writer,][way], seen[writer, reader][way], strict=True):
        for name in STATES:
            assert before[name] == after[name], name
        if "accumulated" not in way:  # Accelerate forgets the gradients of an open window
            assert len(after["losses"]) == 12 // WAYS[way]["ranks"] - 3
            for name in ("losses", "final", "final rate", "count"):
                assert before[name] == after[name], name


@pytest.mark.parametrize("way", WAYS)
def test_both_go_on_alike_from_a_folder_of_accelerate(seen, way) -> None:
    assert seen["accelerate", "ours"][way] == seen["accelerate", "accelerate"][way]
