"""The commands that the README and CI name: they exist, and they are listed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROMISED = {"demo", "test", "lab", "env", "bench", "format", "clean", "help"}


@pytest.fixture(scope="module")
def listed(root: Path) -> dict[str, str]:
    """Target → what `make help` says of it."""
    if shutil.which("make") is None:
        pytest.skip("make is not here")
    told = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return dict(re.findall(r"make (\w+)\s+(.+)", told.stdout))


def test_make_help_lists_what_is_promised(listed: dict[str, str]) -> None:
    assert listed.keys() >= PROMISED


def test_make_help_lists_what_the_readme_names(listed: dict[str, str], readme: str) -> None:
    named = set(re.findall(r"\bmake ([a-z]+)\b", " ".join(code_of(readme))))
    assert named
    assert named <= listed.keys()


def code_of(readme: str) -> list[str]:
    """What the README sets as code: blocks and spans."""
    blocks = re.findall(r"^```.*?^```", readme, flags=re.DOTALL | re.MULTILINE)
    return blocks + re.findall(r"`([^`\n]+)`", readme)


@pytest.mark.parametrize("name", [".ci/run", ".ci/stage"])
def test_the_scripts_of_ci_can_be_executed_and_parsed(root: Path, name: str) -> None:
    script = root / name
    assert os.access(script, os.X_OK)
    parsed = subprocess.run(
        ["bash", "-n", str(script)], capture_output=True, text=True, timeout=20, check=False
    )
    assert parsed.stderr == ""


def test_a_failing_stage_fails_and_tells_its_exit_code(root: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [str(root / ".ci/stage"), "lint", "bash", "-c", "exit 7"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ran.returncode == 7
    assert re.fullmatch(
        r"lint +\d+ s  failed with exit code 7\n", (tmp_path / ".make/times").read_text()
    )
