"""`nb_accelerate.compat.install()` in the kernel holds in the workers of its launches."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

import nb_accelerate.compat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nb_accelerate.launch.run import Run

SCRIPT = """
from accelerate import Accelerator
from accelerate.utils import gather_object

def train():
    accelerator = Accelerator()
    return type(accelerator).__module__, gather_object([accelerator.process_index])
"""


@pytest.fixture
def _installed() -> Iterator[None]:
    with nb_accelerate.compat.installed():
        yield


@pytest.mark.usefixtures("_installed")
def test_a_script_that_imports_accelerate_at_its_top_runs_on_ours(
    launch: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    (tmp_path / "their_script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    request.addfinalizer(lambda: sys.modules.pop("their_script"))
    script = importlib.import_module("their_script")
    expected = ("nb_accelerate.training.accelerator", [0, 1])
    assert launch(script.train).values == [expected, expected]


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("start_method", ["auto", "inline"])
def test_an_import_within_the_function_leads_to_ours(
    launch: Callable[..., Run], start_method: str
) -> None:
    def train() -> str:
        import accelerate

        return accelerate.__name__

    processes = 1 if start_method == "inline" else 2
    run = launch(train, start_method=start_method, num_processes=processes)
    assert run.values == ["nb_accelerate.compat"] * processes


def test_without_it_workers_see_what_is_installed(launch: Callable[..., Run]) -> None:
    def finders() -> list[str]:
        return [
            finder.workers_import for finder in sys.meta_path if hasattr(finder, "workers_import")
        ]

    assert launch(finders).values == [[], []]
