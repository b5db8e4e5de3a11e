"""Aim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from nb_accelerate.training.nested import Anything

__all__ = ["AimTracker"]


class AimTracker(GeneralTracker):
    """Logs to a run in an Aim repository.

    Args:
        run_name: the run's name.
        logging_dir: where the repository is; `repo` among `kwargs` overrules it.
        kwargs: for `aim.Run`.
    """

    name = "aim"
    requires_logging_directory = True

    def __init__(
        self,
        run_name: str,
        logging_dir: str | os.PathLike[str] | None = ".",
        **kwargs: Anything,
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.aim_repo_path = logging_dir
        self.init_kwargs = kwargs
        self.writer: Any = None

    @on_main_process
    def start(self) -> None:
        """Begin the run."""
        kwargs = {"repo": self.aim_repo_path} | self.init_kwargs
        self.writer = guest("aim", self.name).Run(**kwargs)
        self.writer.name = self.run_name

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The Aim run."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters."""
        self.writer["hparams"] = values

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep values, each as a sequence of its name."""
        for name, value in as_numbers(values).items():
            self.writer.track(value, name=name, step=step, **kwargs)

    @on_main_process
    def log_images(
        self,
        values: dict[str, Any],
        step: int | None = None,
        kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Keep images, each alone or as (image, caption).

        Args:
            values: the images by name.
            step: of what step they are.
            kwargs: for `aim.Image` under "aim_image", for `Run.track` under "track".
        """
        more = kwargs or {}
        make_image = guest("aim", self.name).Image
        for name, value in values.items():
            picture, caption = value if isinstance(value, tuple) else (value, "")
            image = make_image(picture, caption=caption, **more.get("aim_image", {}))
            self.writer.track(image, name=name, step=step, **more.get("track", {}))

    @on_main_process
    def finish(self) -> None:
        """Write out what is left and close the run."""
        self.writer.close()
