"""TensorBoard: event files in a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_accelerate.training.logs import get_logger

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers, plain

if TYPE_CHECKING:
    import os

    from nb_accelerate.training.nested import Anything

__all__ = ["TensorBoardTracker"]

logger = get_logger(__name__)


class TensorBoardTracker(GeneralTracker):
    """Writes to `logging_dir/run_name`.

    Args:
        run_name: the folder.
        logging_dir: where it is.
        kwargs: for `SummaryWriter`.
    """

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(
        self,
        run_name: str,
        logging_dir: str | os.PathLike[str],
        **kwargs: Anything,
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = str(Path(logging_dir) / run_name)
        self.init_kwargs = kwargs
        self.writer: Any = None

    @on_main_process
    def start(self) -> None:
        """Open the event file."""
        try:
            tensorboard = guest("torch.utils.tensorboard", self.name)
        except ImportError:
            tensorboard = guest("tensorboardX", self.name)
        self.writer = tensorboard.SummaryWriter(self.logging_dir, **self.init_kwargs)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The `SummaryWriter`."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters, for the HParams tab and in a `hparams.yml`.

        What the tab cannot show (lists, None, objects) is there as text.
        """
        import yaml

        kept = {name: plain(value) for name, value in values.items()}
        shown = {
            n: v if isinstance(v, bool | int | float | str) else str(v) for n, v in kept.items()
        }
        self.writer.add_hparams(shown, metric_dict={})
        self.writer.flush()
        folder = Path(self.logging_dir) / str(time.time())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hparams.yml").write_text(yaml.safe_dump(kept), encoding="utf-8")

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep numbers as scalars, texts as text, dicts of numbers as several lines of one chart.

        They are in the file when this returns.
        """
        for name, value in as_numbers(values).items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, global_step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.add_text(name, value, global_step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.add_scalars(name, value, global_step=step, **kwargs)
            else:
                logger.warning_once(
                    "TensorBoard got no %r: a %s is neither number, text nor dict of numbers.",
                    name,
                    type(value).__name__,
                )
        self.writer.flush()

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, **kwargs: Anything
    ) -> None:
        """Keep batches of images, (n, channels, height, width) unless `dataformats` says else."""
        for name, images in values.items():
            self.writer.add_images(name, images, global_step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Close the file."""
        self.writer.close()
