"""GPUs: NVIDIA's by NVML or the driver's files, Intel's by their PCI numbers."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nb_accelerate.machine.files import read
from nb_accelerate.machine.values import Gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    from nb_accelerate.machine.roots import Roots

__all__ = ["intel_gpus", "nvidia_gpus", "visible"]


def nvidia_gpus(roots: Roots) -> tuple[Gpu, ...]:
    """All there are, whatever CUDA_VISIBLE_DEVICES says: by NVML, else by the driver's files."""
    driver = roots.procfs / "driver" / "nvidia"
    # The Windows subsystem for Linux has the driver behind /dev/dxg.
    signs = (driver / "version", roots.devfs / "nvidiactl", roots.devfs / "dxg")
    if roots.platform == "darwin" or (
        roots.platform == "linux" and not any(sign.exists() for sign in signs)
    ):
        return ()
    nvml = roots.nvml()
    told = _gpus_of_nvml(nvml) if nvml else None
    return _gpus_of_files(driver / "gpus") if told is None else told


def _gpus_of_nvml(nvml: ModuleType) -> tuple[Gpu, ...] | None:
    """None when NVML does not answer, as with a driver that is not loaded."""
    try:
        with _opened(nvml):
            return tuple(_gpu_of_nvml(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return None


@contextmanager
def _opened(nvml: ModuleType) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _gpu_of_nvml(nvml: ModuleType, index: int) -> Gpu:
    device = nvml.nvmlDeviceGetHandleByIndex(index)

    def told(question: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - NVML is untyped
        """NVML's answer; None where this device has none, as old ones have."""
        try:
            return question(device)
        except nvml.NVMLError:
            return None

    amount = told(nvml.nvmlDeviceGetMemoryInfo)
    return Gpu(
        index=index,
        name=told(nvml.nvmlDeviceGetName) or "NVIDIA GPU",
        memory_bytes=amount and int(amount.total),
        uuid=told(nvml.nvmlDeviceGetUUID) or "",
        capability=told(nvml.nvmlDeviceGetCudaComputeCapability),
    )


def _gpus_of_files(folder: Path) -> tuple[Gpu, ...]:
    """From /proc/driver/nvidia/gpus/BUS/information, in the order of the bus."""
    texts = [read(gpu / "information") for gpu in sorted(folder.glob("*"))]
    return tuple(
        Gpu(
            index=index,
            name=_entry(text, "Model") or "NVIDIA GPU",
            uuid=_entry(text, "GPU UUID"),
        )
        for index, text in enumerate(texts)
    )


def _entry(text: str, key: str) -> str:
    found = re.search(rf"^{key}:[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return found[1] if found else ""


def visible(gpus: tuple[Gpu, ...], listed: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order: "1,0", "GPU-8f2…", "" or "-1".

    As the driver reads it: the first entry that names no GPU ends the list, and a GPU that is
    named twice makes it empty.
    """
    if listed is None:
        return gpus
    seen: list[Gpu] = []
    for entry in listed.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        if gpu in seen:
            return ()
        seen.append(gpu)
    return tuple(seen)


def _named(gpus: tuple[Gpu, ...], entry: str) -> Gpu | None:
    if entry.startswith("MIG-"):
        # A slice of a GPU: a device of its own to CUDA, which its parent's memory does not tell of.
        return Gpu(index=len(gpus), name="NVIDIA MIG slice", uuid=entry) if gpus else None
    if entry.startswith("GPU-"):
        alike = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return alike[0] if len(alike) == 1 else None
    number = re.match(r"\+?(\d+)", entry)
    return gpus[int(number[1])] if number and int(number[1]) < len(gpus) else None


def intel_gpus(roots: Roots) -> int:
    """Intel's display controllers, which is what an XPU build of torch computes on."""
    devices = (roots.sysfs / "bus" / "pci" / "devices").glob("*")
    return sum(
        read(device / "vendor") == "0x8086" and read(device / "class").startswith("0x03")
        for device in devices
    )
