"""DVCLive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nb_accelerate.training.logs import get_logger

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["DVCLiveTracker"]

logger = get_logger(__name__)


class DVCLiveTracker(GeneralTracker):
    """Logs to a DVCLive folder.

    Args:
        run_name: not used: DVCLive names by `dir`.
        live: a `dvclive.Live` to go on with.
        kwargs: for `dvclive.Live`.
    """

    name = "dvclive"
    requires_logging_directory = False

    def __init__(
        self,
        run_name: str | None = None,  # noqa: ARG002  # each tracker is told it
        live: Anything = None,
        **kwargs: Anything,
    ) -> None:
        super().__init__()
        self.live = live
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        """Open the folder."""
        if self.live is None:
            self.live = guest("dvclive", self.name).Live(**self.init_kwargs)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The `dvclive.Live`."""
        return self.live

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters."""
        self.live.log_params(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep metrics, and go on to the next step."""
        could_log = guest("dvclive.plots", self.name).Metric.could_log
        if step is not None:
            self.live.step = step
        for name, value in as_numbers(values).items():
            if could_log(value):
                self.live.log_metric(name, value, **kwargs)
            else:
                logger.warning_once(
                    "DVCLive got no %r: a %s is no metric.", name, type(value).__name__
                )
        self.live.next_step()

    @on_main_process
    def finish(self) -> None:
        """Write out what is left."""
        self.live.end()
