"""Comet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nb_accelerate.training.logs import get_logger

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["CometMLTracker"]

logger = get_logger(__name__)


class CometMLTracker(GeneralTracker):
    """Logs to an experiment of a Comet project. Comet's own configuration holds the API key.

    Args:
        run_name: the project.
        kwargs: for `comet_ml.start`; for `comet_ml.Experiment` in versions before 3.41.
    """

    name = "comet_ml"
    requires_logging_directory = False

    def __init__(self, run_name: str, **kwargs: Anything) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.writer: Any = None

    @on_main_process
    def start(self) -> None:
        """Begin the experiment."""
        comet_ml = guest("comet_ml", self.name)
        begin = comet_ml.start if hasattr(comet_ml, "start") else comet_ml.Experiment
        self.writer = begin(project_name=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The Comet experiment."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters."""
        self.writer.log_parameters(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep numbers and dicts of numbers as metrics, texts beside them."""
        if step is not None:
            self.writer.set_step(step)
        for name, value in as_numbers(values).items():
            if isinstance(value, int | float):
                self.writer.log_metric(name, value, step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.log_other(name, value, **kwargs)
            elif isinstance(value, dict):
                self.writer.log_metrics(value, step=step, **kwargs)
            else:
                logger.warning_once(
                    "Comet got no %r: a %s is neither number, text nor dict of numbers.",
                    name,
                    type(value).__name__,
                )

    @on_main_process
    def finish(self) -> None:
        """Upload what is left and end the experiment."""
        self.writer.end()
