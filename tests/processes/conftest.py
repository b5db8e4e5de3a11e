"""Launches from an ordinary process: quick to make, and nothing of Jupyter in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nb_accelerate import kill_all
from nb_accelerate.notebook import notebook_launcher
from nb_accelerate.ui.views import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nb_accelerate.launch.run import Run

Launch = "Callable[..., Run]"


@pytest.fixture
def recorder() -> Recorder:
    """Watches the launches of a test."""
    return Recorder()


@pytest.fixture
def launch(recorder: Recorder) -> Callable[..., Run]:
    """notebook_launcher on CPU processes, 2 if not said otherwise."""

    def launched(function: Callable[..., object], *args: object, **settings: object) -> Run:
        settings = {"num_processes": 2, "hardware": "cpu", "view": recorder, **settings}
        return notebook_launcher(function, args, **settings)

    return launched


@pytest.fixture(scope="session", autouse=True)
def _end_with_the_session() -> Iterator[None]:
    yield
    kill_all()
