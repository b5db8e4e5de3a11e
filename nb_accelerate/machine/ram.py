"""The memory that this process may count on, and what is free of /dev/shm."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from nb_accelerate.machine.cgroups import cgroup_folders
from nb_accelerate.machine.files import number, read

if TYPE_CHECKING:
    from pathlib import Path

    from nb_accelerate.machine.roots import Roots

__all__ = ["free_bytes", "memory"]


def memory(roots: Roots) -> tuple[int | None, int | None]:
    """(all, available) bytes of memory that this process may count on."""
    total, available = _system_memory(roots)
    for folder in cgroup_folders(roots, "memory"):
        limit = number(folder / "memory.max", folder / "memory.limit_in_bytes")
        # cgroup v1 says "no limit" by an absurdly high one.
        if limit is None or total is None or limit >= total:
            continue
        total = limit
        used = number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
        free = max(0, limit - used + _reclaimable(folder))
        available = free if available is None else min(available, free)
    return total, available


def _reclaimable(folder: Path) -> int:
    """Bytes of the page cache that a cgroup counts as used and gives up when asked."""
    stat: dict[str, str] = dict(
        re.findall(r"^(\w+) (\d+)$", read(folder / "memory.stat"), re.MULTILINE)
    )
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def _system_memory(roots: Roots) -> tuple[int | None, int | None]:
    if roots.platform == "linux":
        text = read(roots.procfs / "meminfo")
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
        kilobytes = (found.get("MemTotal"), found.get("MemAvailable"))
        total, available = (None if kb is None else int(kb) * 1024 for kb in kilobytes)
        return total, available
    import psutil  # 25 ms of import, which Linux need not pay

    now = psutil.virtual_memory()
    return now.total, now.available


def free_bytes(folder: Path) -> int | None:
    """Free bytes of the file system that `folder` lies on; None without such a folder."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
