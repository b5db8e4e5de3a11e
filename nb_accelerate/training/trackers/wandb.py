"""Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .general import on_main_process
from .of_runs import RunTracker

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["WandBTracker"]


class WandBTracker(RunTracker):
    """Logs to a run of a W&B project; further arguments are for `wandb.init`."""

    name = "wandb"

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters in the run's config."""
        self.run.config.update(values, allow_val_change=True)

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, **kwargs: Anything
    ) -> None:
        """Keep lists of images (arrays, PIL's)."""
        self._log_images(values, step, **kwargs)

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
        table = self.package.Table(columns=columns, data=data, dataframe=dataframe)
        self.run.log({table_name: table}, step=step, **kwargs)
