"""Project: where checkpoints and logs are kept, and how automatic ones are named and limited."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nb_accelerate.errors import SpecError

from .draft import discard_folder
from .index import is_complete

if TYPE_CHECKING:
    import os

__all__ = ["ProjectConfiguration", "asked_project", "limit_number", "newest", "next_number"]

_NAME = re.compile(r"checkpoint_(\d+)")


@dataclass
class ProjectConfiguration:
    """Where a project keeps its files. The fields are Accelerate's.

    Attributes:
        project_dir: the folder of it all.
        logging_dir: where trackers that write files do so; None is `project_dir`.
        automatic_checkpoint_naming: `save_state` writes `<project_dir>/checkpoints/checkpoint_<n>`.
        total_limit: how many of those are kept; the oldest goes when a new one is complete.
        iteration: the number of the next one, unless there are higher ones: it goes on after them.
        save_on_each_node: each host writes, for hosts that share no disk.

    Raises:
        SpecError: a limit below 1.
    """

    project_dir: str | os.PathLike[str] | None = None
    logging_dir: str | os.PathLike[str] | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        if self.total_limit is not None and self.total_limit < 1:
            raise SpecError(
                f"total_limit={self.total_limit}, but at least one checkpoint must be kept. Leave "
                f"it out to keep all."
            )
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Keep the project there, and its logs too unless they have a place of their own."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir

    @property
    def checkpoints(self) -> Path:
        """The folder of automatically named checkpoints.

        Raises:
            SpecError: there is no project_dir.
        """
        if self.project_dir is None:
            raise SpecError(
                "automatic_checkpoint_naming=True writes to <project_dir>/checkpoints, but no "
                "project_dir was given. Pass Accelerator(project_dir=...)."
            )
        return Path(self.project_dir).expanduser() / "checkpoints"

    def folder_of(self, number: int) -> Path:
        """The automatically named checkpoint of that number."""
        return self.checkpoints / f"checkpoint_{number}"


def asked_project(
    config: ProjectConfiguration | None,
    project_dir: str | os.PathLike[str] | None,
    logging_dir: str | os.PathLike[str] | None,
) -> ProjectConfiguration:
    """The configuration that an Accelerator's arguments ask for; what it says itself wins."""
    config = config or ProjectConfiguration(logging_dir=logging_dir)
    if project_dir is not None and config.project_dir is None:
        config.set_directories(project_dir)
    if logging_dir is not None and config.logging_dir in (None, config.project_dir):
        config.logging_dir = logging_dir
    return config


def next_number(project: ProjectConfiguration) -> int:
    """The number of the next automatic checkpoint: higher than all that are there."""
    return max([project.iteration, *(number + 1 for number in _numbers(project.checkpoints))])


def newest(project: ProjectConfiguration) -> int:
    """The highest number of a complete checkpoint.

    Raises:
        SpecError: there is none.
    """
    incomplete: list[str] = []
    for number in sorted(_numbers(project.checkpoints), reverse=True):
        if is_complete(project.folder_of(number)):
            if incomplete:
                warnings.warn(
                    f"Not complete, and left out: {', '.join(incomplete)}. Training goes on from "
                    f"{project.folder_of(number)}.",
                    stacklevel=2,
                )
            return number
        incomplete.append(str(project.folder_of(number)))
    raise SpecError(
        f"load_state() was asked for the newest checkpoint, but {project.checkpoints} holds no "
        f"complete one. Pass the folder to load, or start from the beginning."
    )


def limit_number(project: ProjectConfiguration) -> None:
    """Remove the oldest automatic checkpoints that are more than `total_limit`."""
    if project.total_limit is not None:
        for number in sorted(_numbers(project.checkpoints))[: -project.total_limit]:
            discard_folder(project.folder_of(number))


def _numbers(checkpoints: Path) -> list[int]:
    if not checkpoints.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in checkpoints.iterdir())
    return [int(match[1]) for match, path in found if match and path.is_dir()]
