"""Which trackers there are, by name, and which of those that were asked for can be had."""

from __future__ import annotations

import importlib.util
import warnings
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from nb_accelerate.errors import SpecError

from .aim import AimTracker
from .clearml import ClearMLTracker
from .comet import CometMLTracker
from .dvclive import DVCLiveTracker
from .general import GeneralTracker
from .mlflow import MLflowTracker
from .swanlab import SwanLabTracker
from .tensorboard import TensorBoardTracker
from .trackio import TrackioTracker
from .wandb import WandBTracker

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = [
    "LOGGER_TYPE_TO_CLASS",
    "LoggerType",
    "Wanted",
    "filter_trackers",
    "get_available_trackers",
    "register_tracker_class",
]


class LoggerType(str, Enum):  # noqa: UP042  # str() gives the value below, as upstream's
    """Trackers that can be asked for by name."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def list(cls) -> list[str]:
        """All names."""
        return [member.value for member in cls]


Wanted: TypeAlias = "str | LoggerType | GeneralTracker"
"""A tracker, or the name of one."""

LOGGER_TYPE_TO_CLASS: dict[str, type[GeneralTracker]] = {
    tracker.name: tracker
    for tracker in (
        AimTracker,
        CometMLTracker,
        MLflowTracker,
        TensorBoardTracker,
        WandBTracker,
        ClearMLTracker,
        DVCLiveTracker,
        SwanLabTracker,
        TrackioTracker,
    )
}
"""Trackers by name. A user's own come in by `register_tracker_class`; the name is Accelerate's."""

# Where a tracker's module is not called as the tracker is.
_MODULES = {"tensorboard": ("tensorboard", "tensorboardX")}


def register_tracker_class(tracker_class: type[GeneralTracker]) -> None:
    """Let `log_with="<its name>"` mean this class, in Accelerators that are made from now on.

    Raises:
        SpecError: it is no heir of GeneralTracker, or lacks `name` or `requires_logging_directory`.
    """
    given: object = tracker_class
    if not (isinstance(given, type) and issubclass(given, GeneralTracker)):
        raise SpecError(
            f"{tracker_class!r} is no class of trackers: derive it from GeneralTracker."
        )
    for attribute in ("name", "requires_logging_directory"):
        if getattr(tracker_class, attribute, "") == "":
            raise SpecError(
                f"{tracker_class.__name__} has no {attribute!r}: define it in the class."
            )
    if tracker_class.name in LOGGER_TYPE_TO_CLASS:
        known = LOGGER_TYPE_TO_CLASS[tracker_class.name].__name__
        warnings.warn(
            f"The tracker {tracker_class.name!r} was {known} and is {tracker_class.__name__} now.",
            stacklevel=2,
        )
    LOGGER_TYPE_TO_CLASS[tracker_class.name] = tracker_class


def get_available_trackers() -> list[LoggerType]:
    """The built-in trackers whose packages are installed. None is imported."""
    return [kind for kind in LoggerType if kind is not LoggerType.ALL and _is_installed(kind.value)]


def filter_trackers(
    log_with: Wanted | Sequence[Wanted] | None,
    logging_dir: str | os.PathLike[str] | None = None,
) -> list[Wanted]:
    """Those of the trackers that can be had, each once; "all" stands for all that are installed.

    What is known but not installed is left out with one warning.

    Raises:
        SpecError: there is no such tracker, or it needs a directory and there is none.
    """
    if log_with is None:
        return []
    asked = log_with if isinstance(log_with, list | tuple) else [log_with]
    own = [tracker for tracker in asked if isinstance(tracker, GeneralTracker)]
    names = [_known(name) for name in asked if not isinstance(name, GeneralTracker)]
    if LoggerType.ALL in names:
        return [*own, *_all_of(logging_dir)]
    missing = [name for name in names if isinstance(name, LoggerType) and not _can_be_had(name)]
    if missing:
        _warn_of(missing, own or set(names) - set(missing))
    for name in names:
        if name not in missing and logging_dir is None and _needs_directory(name):
            raise SpecError(
                f"Logging with `{name}` requires a `logging_dir`: a folder to write to. Pass "
                f"project_dir to the Accelerator, or a ProjectConfiguration that has one."
            )
    found = [one if isinstance(one, GeneralTracker) else _known(one) for one in asked]
    unique = {id(one) if isinstance(one, GeneralTracker) else one: one for one in found}
    return [one for one in unique.values() if one not in missing]


def _known(name: object) -> str | LoggerType:
    text = str(getattr(name, "value", name))
    if text in LoggerType.list():
        return LoggerType(text)
    if text in LOGGER_TYPE_TO_CLASS:
        return text
    raise SpecError(
        f"log_with={text!r} is no tracker. Known are "
        f"{', '.join(sorted({*LoggerType.list(), *LOGGER_TYPE_TO_CLASS}))}; one of your own can be "
        f"passed as an object, or made known by register_tracker_class."
    )


def _all_of(logging_dir: object) -> list[LoggerType]:
    found = get_available_trackers()
    homeless = [kind for kind in found if logging_dir is None and _needs_directory(kind)]
    if homeless:
        warnings.warn(
            f"log_with='all' leaves out {', '.join(map(str, homeless))}: there is no directory to "
            f"write to. Pass project_dir to the Accelerator.",
            stacklevel=4,
        )
    return [kind for kind in found if kind not in homeless]


def _warn_of(missing: list[LoggerType], others: object) -> None:
    rest = "" if others else " Nothing is tracked."
    warnings.warn(
        f"log_with names {', '.join(map(str, missing))}, but the package is not installed: such "
        f"values go to the cell alone.{rest}",
        stacklevel=4,
    )


def _needs_directory(name: str | LoggerType) -> bool:
    return LOGGER_TYPE_TO_CLASS[str(name)].requires_logging_directory


def _can_be_had(kind: LoggerType) -> bool:
    own = not LOGGER_TYPE_TO_CLASS[kind.value].__module__.startswith(__package__ or "?")
    return own or _is_installed(kind.value)


def _is_installed(name: str) -> bool:
    # A folder such as ./wandb, which wandb itself makes, looks like a package without an origin.
    specs = (importlib.util.find_spec(module) for module in _MODULES.get(name, (name,)))
    return any(spec is not None and spec.origin is not None for spec in specs)
