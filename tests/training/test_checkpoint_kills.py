"""A kill at any moment of a save leaves a checkpoint that can be loaded: the old one or the new."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[list[float]]]:
    """What was loaded after each kill, by way of saving."""
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_saves.py"), str(tmp_path_factory.mktemp("kills"))],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", ["over an old one", "with a limit", "an object"])
def test_what_is_loaded_after_a_kill_is_whole(found, way) -> None:
    for number, values in enumerate(found[way], 1):
        assert len(set(values)) == 1, f"a mixture after a kill before operation {number}: {values}"
        assert values[0] in (1, 2)


@pytest.mark.parametrize("way", ["over an old one", "with a limit", "an object"])
def test_the_old_one_holds_until_the_new_one_is_complete_and_never_comes_back(found, way) -> None:
    values = [value for value, *_ in found[way]]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (1, 2)
    assert len(values) > 3
