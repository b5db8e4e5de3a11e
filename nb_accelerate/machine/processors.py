"""The CPUs that this process may use, whatever the host has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nb_accelerate.machine.cgroups import cgroup_folders
from nb_accelerate.machine.files import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nb_accelerate.machine.roots import Roots

__all__ = ["usable_cpus"]


def usable_cpus(roots: Roots) -> int:
    """CPUs that this process may keep busy: at most its affinity and its cgroups' quotas."""
    quotas = [math.ceil(quota) for quota in _cpu_quotas(roots)]
    return max(1, min([roots.affinity(), *quotas]))


def _cpu_quotas(roots: Roots) -> Iterator[float]:
    """CPU seconds per second that each cgroup from this process's own to the root allows."""
    for folder in cgroup_folders(roots, "cpu"):
        quota, _, period = read(folder / "cpu.max").partition(" ")
        quota = quota or read(folder / "cpu.cfs_quota_us")
        period = period or read(folder / "cpu.cfs_period_us")
        # "max" and -1 mean no quota.
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            yield int(quota) / int(period)
