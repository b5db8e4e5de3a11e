"""What importing the package costs, by what it loads: a clock would tell the machine's mood."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

GUESTS = {"torch", "numpy", "ipywidgets", "IPython", "anywidget", "matplotlib", "jupyter_client"}

ROOMS_OF_GUESTS = ("training", "ui", "worker", "cli", "compat")


def modules_after(statement: str, root: Path) -> set[str]:
    """All modules that a fresh interpreter has loaded after a statement."""
    program = f"import sys, json\n{statement}\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=root,
        check=True,
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_but_the_standard_library(root: Path) -> None:
    known = {*sys.stdlib_module_names, "nb_accelerate"}
    added = modules_after("import nb_accelerate", root) - modules_after("pass", root)
    foreign = {name for name in added if name.partition(".")[0] not in known}
    assert foreign == set()
    assert len(added) < 100, f"the import loads {len(added)} modules"


@pytest.mark.parametrize(
    "names", ["notebook_launcher, debug_launcher", "LaunchSpec, Run, runs, ps, kill_all, explain"]
)
def test_the_doors_open_without_torch_or_widgets(root: Path, names: str) -> None:
    loaded = modules_after(f"from nb_accelerate import {names}", root)
    assert loaded & GUESTS == set()


def test_no_module_of_the_kernel_side_loads_torch_or_widgets(root: Path) -> None:
    folder = root / "nb_accelerate"
    modules = [
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(folder.rglob("*.py"))
        if path.relative_to(folder).parts[0] not in ROOMS_OF_GUESTS
    ]
    assert len(modules) > 8
    loaded = modules_after(f"import {', '.join(modules)}", root)
    assert loaded & GUESTS == set()
