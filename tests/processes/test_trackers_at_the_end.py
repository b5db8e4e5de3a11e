"""What trackers hold back reaches the disk, however a launch ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def train(path: str, end: str) -> str:
    """Log to a tracker that writes when it is finished; then raise, return, or end training."""
    from nb_accelerate import Accelerator
    from nb_accelerate.training.trackers import GeneralTracker

    class Hoarder(GeneralTracker):
        name = "hoarder"
        requires_logging_directory = False

        def start(self) -> None:
            self.told = []

        @property
        def tracker(self) -> list:
            return self.told

        def log(self, values, step=None) -> None:
            self.told.append([values, step])

        def finish(self) -> None:
            Path(path).write_text(json.dumps(self.told))

    accelerator = Accelerator(log_with=Hoarder())
    accelerator.init_trackers("project")
    accelerator.log({"loss": accelerator.process_index}, step=1)
    accelerator.wait_for_everyone()
    if end == "raise":
        raise ValueError("training has failed")
    if end == "end_training":
        accelerator.end_training()
        assert accelerator.gather_object([1]) == [1, 1]  # the ranks are together still
    return end


@pytest.mark.parametrize("end", ["return", "end_training"])
def test_trackers_are_finished_when_the_function_has_returned(launch, tmp_path, end):
    assert launch(train, str(tmp_path / "told"), end).value == end
    assert json.loads((tmp_path / "told").read_text()) == [[{"loss": 0}, 1]]


def test_trackers_are_finished_when_the_function_has_raised(launch, tmp_path):
    with pytest.raises(ValueError, match="training has failed"):
        launch(train, str(tmp_path / "told"), "raise")
    assert json.loads((tmp_path / "told").read_text()) == [[{"loss": 0}, 1]]
