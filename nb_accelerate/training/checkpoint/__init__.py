"""Checkpoints: what a training needs to go on, in folders that Accelerate can exchange with us.

Reading order: names, files (what is in a folder), point (where in the training it was made), draft
(how a folder takes its place at once), saving, loading.
"""

from __future__ import annotations

from .by_hand import (
    load_accelerator_state,
    load_custom_state,
    save_accelerator_state,
    save_custom_state,
)
from .keepsakes import Keepsakes
from .loading import load_state
from .model_files import save, save_model_files, write_object, writes
from .project import ProjectConfiguration, asked_project
from .reading import load
from .saving import save_state

__all__ = [
    "Keepsakes",
    "ProjectConfiguration",
    "asked_project",
    "load",
    "load_accelerator_state",
    "load_custom_state",
    "load_state",
    "save",
    "save_accelerator_state",
    "save_custom_state",
    "save_model_files",
    "save_state",
    "write_object",
    "writes",
]
