"""Where the survey looks: folders, and questions to the system."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from platform import machine as processor_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["Roots"]


def _affinity() -> int:
    ask = getattr(os, "sched_getaffinity", None)  # macOS and Windows have none
    return len(ask(0)) if ask else os.cpu_count() or 1


def _folder_of(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a loaded module without a spec, such as a stub of the user's
        return None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None


def _pynvml() -> ModuleType | None:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the survey looks; a test points it at a folder of its own."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devfs: Path = Path("/dev")
    platform: str = sys.platform
    processor: Callable[[], str] = processor_name
    affinity: Callable[[], int] = _affinity
    """How many CPUs this process may run on."""
    package: Callable[[str], Path | None] = _folder_of
    """The folder of an installed package, without importing it."""
    nvml: Callable[[], ModuleType | None] = _pynvml
