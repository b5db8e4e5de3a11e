"""TPUs: by their PCI numbers, else by their device files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nb_accelerate.machine.files import read
from nb_accelerate.machine.values import Tpu

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nb_accelerate.machine.roots import Roots

__all__ = ["tpu"]

_TPU_KINDS = {
    "0x0027": "v2/v3",
    "0x0056": "TPU",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "v7x",
}
"""Google's PCI device numbers."""


def tpu(roots: Roots, environ: Mapping[str, str]) -> Tpu | None:
    """The TPU chips by their PCI numbers; else by their device files.

    PJRT_DEVICE and TPU_NAME stand on machines without a TPU and are missing on machines with one,
    so they only decide what the device files of a virtual machine's /dev/vfio are.
    """
    kinds = _google_chips(roots)
    if kinds:
        return Tpu(chips=len(kinds), kind=kinds[0])
    chips = _count(roots.devfs, r"accel\d+")
    if not chips and environ.get("PJRT_DEVICE") == "TPU" and roots.package("libtpu"):
        chips = _count(roots.devfs / "vfio", r"\d+")
    kind = environ.get("TPU_ACCELERATOR_TYPE") or environ.get("ACCELERATOR_TYPE") or "TPU"
    return Tpu(chips=chips, kind=kind) if chips else None


def _google_chips(roots: Roots) -> list[str]:
    devices = sorted((roots.sysfs / "bus" / "pci" / "devices").glob("*"))
    numbers = (read(d / "device") for d in devices if read(d / "vendor") == "0x1ae0")
    return [_TPU_KINDS[number] for number in numbers if number in _TPU_KINDS]


def _count(folder: Path, pattern: str) -> int:
    return sum(bool(re.fullmatch(pattern, entry.name)) for entry in folder.glob("*"))
