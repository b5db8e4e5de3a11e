"""Runs: what trackers have in common whose package gives a run to log to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["RunTracker"]


class RunTracker(GeneralTracker):
    """Logs to a run of a project; the package has the tracker's name.

    Args:
        run_name: the project.
        kwargs: for the package's `init`.
    """

    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, **kwargs: Anything) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.run: Any = None

    @property
    def package(self) -> Any:  # noqa: ANN401  # another package
        """Imported when it is first needed."""
        return guest(self.name, self.name)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The package's run."""
        return self.run

    @on_main_process
    def start(self) -> None:
        """Begin the run."""
        self.run = self.package.init(project=self.run_name, **self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters in the package's config, which is that of the run."""
        self.package.config.update(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep values; what the package can show beyond numbers passes as it is."""
        self.run.log(as_numbers(values), step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Upload what is left and end the run."""
        self.run.finish()

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Anything) -> None:
        image = self.package.Image
        for name, images in values.items():
            self.run.log({name: [image(one) for one in images]}, step=step, **kwargs)
