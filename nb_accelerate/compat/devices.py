"""What upstream's `utils.environment` tells of GPUs, asked of the driver: CUDA stays off."""

from __future__ import annotations

import functools
import importlib
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nb_accelerate.errors import PlanError
from nb_accelerate.machine import Roots, nvidia_gpus

from . import probes
from .environment import parse_flag_from_env

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = [
    "check_cuda_fp8_capability",
    "check_cuda_p2p_ib_support",
    "get_current_device_type",
    "get_driver_version",
    "get_gpu_info",
    "override_numa_affinity",
    "set_numa_affinity",
]

_FLOAT8 = (8, 9)
"""The first compute capability whose arithmetic units know 8-bit floats."""

_KINDS = {
    "mlu": "MULTI_MLU",
    "sdaa": "MULTI_SDAA",
    "musa": "MULTI_MUSA",
    "npu": "MULTI_NPU",
    "hpu": "MULTI_HPU",
    "xpu": "MULTI_XPU",
    "neuron": "MULTI_NEURON",
}


def get_current_device_type() -> tuple[str, str]:
    """(device, distributed type) of this machine, as ("xpu", "MULTI_XPU"); CUDA's if no other."""
    for device, distributed in _KINDS.items():
        if getattr(probes, f"is_{device}_available")():
            return device, distributed
    return "cuda", "MULTI_GPU"


def get_gpu_info() -> tuple[list[str], int]:
    """(names, number) of the NVIDIA GPUs of this machine."""
    names = [gpu.name for gpu in nvidia_gpus(Roots())]
    return names, len(names)


def get_driver_version() -> str:
    """The version of NVIDIA's driver.

    Raises:
        PlanError: there is none.
    """
    with _nvml() as nvml:
        version = nvml.nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)


def check_cuda_p2p_ib_support() -> bool:
    """Whether NCCL may use peer-to-peer transfers: an old driver cannot with RTX 40 GPUs."""
    names, number = get_gpu_info()
    if number < 2 or not any("RTX 40" in name for name in names):
        return True
    major, minor, *_ = (int(part) for part in get_driver_version().split("."))
    return (major, minor) >= (550, 40)


@functools.cache
def check_cuda_fp8_capability() -> bool:
    """Whether this machine's first GPU computes in 8-bit floats."""
    found = [gpu.capability for gpu in nvidia_gpus(Roots()) if gpu.capability is not None]
    return bool(found) and found[0] >= _FLOAT8


def override_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:  # noqa: FBT001  # upstream's
    """Let this process run on those CPUs only that are next to its GPU.

    Args:
        local_process_index: which GPU.
        verbose: whether to log which CPUs; None: in debug mode.

    Raises:
        PlanError: the driver does not answer.
    """
    if not probes.is_cuda_available():
        return
    with _nvml() as nvml:
        nvml.nvmlDeviceSetCpuAffinity(nvml.nvmlDeviceGetHandleByIndex(local_process_index))
    if parse_flag_from_env("ACCELERATE_DEBUG_MODE") if verbose is None else verbose:
        cpus = sorted(os.sched_getaffinity(0))
        _log().info("Process %d runs on %d CPUs: %s", local_process_index, len(cpus), cpus)


@functools.cache
def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:  # noqa: FBT001  # upstream's
    """The same, once for each process index."""
    override_numa_affinity(local_process_index, verbose)


@contextmanager
def _nvml() -> Iterator[ModuleType]:
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise PlanError(
            f"NVIDIA's driver was asked, but does not answer: {error}. `nvidia-smi` in a terminal "
            "tells whether it is loaded."
        ) from error
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _log() -> logging.Logger:
    return logging.getLogger("accelerate.utils.environment")
