"""Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["WandBTracker"]


class WandBTracker(GeneralTracker):
    """Logs to a run of a W&B project.

    Args:
        run_name: the project.
        kwargs: for `wandb.init`.
    """

    name = "wandb"
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
        self.run = guest("wandb", self.name).init(project=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The W&B run."""
        return self.run

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters in the run's config."""
        self.run.config.update(values, allow_val_change=True)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep values; what W&B can show beyond numbers passes as it is."""
        self.run.log(as_numbers(values), step=step, **kwargs)

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, **kwargs: Anything
    ) -> None:
        """Keep lists of images (arrays, PIL's)."""
        image = guest("wandb", self.name).Image
        for name, images in values.items():
            self.run.log({name: [image(one) for one in images]}, step=step, **kwargs)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Anything = None,
        step: int | None = None,
        **kwargs: Anything,
    ) -> None:
        """Keep a table, of columns and rows or of a dataframe."""
        table = guest("wandb", self.name).Table(columns=columns, data=data, dataframe=dataframe)
        self.run.log({table_name: table}, step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Upload what is left and end the run."""
        self.run.finish()
