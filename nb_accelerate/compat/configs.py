"""Upstream's configuration file: where it lies, and its simplest form."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml

from nb_accelerate.errors import SpecError
from nb_accelerate.launch.environment import survey_here

from .environment import parse_choice_from_env

if TYPE_CHECKING:
    from os import PathLike

__all__ = [
    "cache_dir",
    "default_config_file",
    "default_json_config_file",
    "default_yaml_config_file",
    "hf_cache_home",
    "write_basic_config",
]

_PRECISIONS = ("no", "fp16", "bf16", "fp8")

_caches = parse_choice_from_env("XDG_CACHE_HOME", "~/.cache")
_home = Path(parse_choice_from_env("HF_HOME", str(Path(_caches, "huggingface")))).expanduser()

hf_cache_home = str(_home)
"""Hugging Face's folder: HF_HOME, else in XDG_CACHE_HOME, else in ~/.cache."""
cache_dir = str(_home / "accelerate")
default_yaml_config_file = str(_home / "accelerate" / "default_config.yaml")
default_json_config_file = default_yaml_config_file
default_config_file = default_yaml_config_file


def write_basic_config(
    mixed_precision: str = "no", save_location: str | PathLike[str] = default_config_file
) -> Path | Literal[False]:
    """Write a configuration for this machine: all its GPUs, or one process on the CPU.

    Args:
        mixed_precision: "no", "fp16", "bf16" or "fp8".
        save_location: the file, written as JSON if it is named so, else as YAML.

    Returns:
        The file; False if it was there already, which leaves it as it is.

    Raises:
        SpecError: a precision that is none.
    """
    path = Path(save_location)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        warnings.warn(f"{path} is there already and stays as it is.", stacklevel=2)
        return False
    precision = mixed_precision.lower()
    if precision not in _PRECISIONS:
        raise SpecError(f"mixed_precision={mixed_precision!r}: give one of {_PRECISIONS}.")
    write = json.dumps if path.suffix == ".json" else yaml.safe_dump
    path.write_text(write(_configuration(precision)), encoding="utf-8")
    return path


def _configuration(precision: str) -> dict[str, object]:
    machine = survey_here()
    several = "MULTI_GPU" if machine.gpus else "MULTI_XPU"
    devices = len(machine.gpus) or machine.xpus or int(machine.mps)
    return {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": several if devices > 1 else "NO",
        "enable_cpu_affinity": False,
        "mixed_precision": precision,
        "num_machines": 1,
        "num_processes": max(devices, 1),
        "use_cpu": devices == 0,
    }
