"""SwanLab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["SwanLabTracker"]


class SwanLabTracker(GeneralTracker):
    """Logs to an experiment of a SwanLab project.

    Args:
        run_name: the project.
        kwargs: for `swanlab.init`.
    """

    name = "swanlab"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, **kwargs: Anything) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.run: Any = None

    @on_main_process
    def start(self) -> None:
        """Begin the experiment."""
        self.run = guest("swanlab", self.name).init(project=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The SwanLab run."""
        return self.run

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters in the experiment's config."""
        guest("swanlab", self.name).config.update(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep values; what SwanLab can show beyond numbers passes as it is."""
        self.run.log(as_numbers(values), step=step, **kwargs)

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, **kwargs: Anything
    ) -> None:
        """Keep lists of images (arrays, PIL's)."""
        image = guest("swanlab", self.name).Image
        for name, images in values.items():
            self.run.log({name: [image(one) for one in images]}, step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Upload what is left and end the experiment."""
        self.run.finish()
