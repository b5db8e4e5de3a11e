"""Trackio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["TrackioTracker"]


class TrackioTracker(GeneralTracker):
    """Logs to a run of a Trackio project.

    Args:
        run_name: the project.
        kwargs: for `trackio.init`.
    """

    name = "trackio"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, **kwargs: Anything) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.run: Any = None

    @on_main_process
    def start(self) -> None:
        """Begin the run."""
        self.run = guest("trackio", self.name).init(project=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The Trackio run."""
        return self.run

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters in the run's config, which is a plain dict."""
        guest("trackio", self.name).config.update(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep values."""
        self.run.log(as_numbers(values), step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Write out what is left and end the run."""
        self.run.finish()
