"""SwanLab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .general import on_main_process
from .of_runs import RunTracker

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["SwanLabTracker"]


class SwanLabTracker(RunTracker):
    """Logs to an experiment of a SwanLab project; further arguments are for `swanlab.init`."""

    name = "swanlab"

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, **kwargs: Anything
    ) -> None:
        """Keep lists of images (arrays, PIL's)."""
        self._log_images(values, step, **kwargs)
