"""Installed packages, known by their files: none is imported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nb_accelerate.machine.files import read
from nb_accelerate.machine.values import Torch

if TYPE_CHECKING:
    from nb_accelerate.machine.roots import Roots

__all__ = ["installed_torch"]


def installed_torch(roots: Roots) -> Torch | None:
    """The installed torch and what it is built for, from its version file, without importing it."""
    folder = roots.package("torch")
    if folder is None:
        return None
    text = read(folder / "version.py")
    found = dict(re.findall(r"^(\w+)\s*(?::[^=\n]*)?=\s*(.+?)\s*$", text, re.MULTILINE))
    version = found.get("__version__", "").strip("'\"")
    if "cuda" not in found:
        return Torch(version=version)
    # ROCm builds call their devices "cuda" too; the Mac's wheels have MPS without saying so.
    named = {"cuda": "cuda", "hip": "cuda", "xpu": "xpu"}
    built = {name for key, name in named.items() if found.get(key, "None") != "None"}
    mac = {"mps"} if roots.platform == "darwin" else set()
    return Torch(version=version, accelerators=frozenset(built | mac))
