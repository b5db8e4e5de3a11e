"""Trackers: experiment trackers of other packages, each imported when a run of it begins."""

from __future__ import annotations

from .aim import AimTracker
from .clearml import ClearMLTracker
from .comet import CometMLTracker
from .dvclive import DVCLiveTracker
from .general import AbsentTracker, GeneralTracker, on_main_process
from .kinds import (
    LOGGER_TYPE_TO_CLASS,
    LoggerType,
    Wanted,
    filter_trackers,
    get_available_trackers,
    register_tracker_class,
)
from .mlflow import MLflowTracker
from .running import Tracking
from .swanlab import SwanLabTracker
from .tensorboard import TensorBoardTracker
from .trackio import TrackioTracker
from .wandb import WandBTracker

__all__ = [
    "LOGGER_TYPE_TO_CLASS",
    "AbsentTracker",
    "AimTracker",
    "ClearMLTracker",
    "CometMLTracker",
    "DVCLiveTracker",
    "GeneralTracker",
    "LoggerType",
    "MLflowTracker",
    "SwanLabTracker",
    "TensorBoardTracker",
    "Tracking",
    "TrackioTracker",
    "WandBTracker",
    "Wanted",
    "filter_trackers",
    "get_available_trackers",
    "on_main_process",
    "register_tracker_class",
]
