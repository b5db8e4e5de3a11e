"""Control groups, by which containers and schedulers limit processors and memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nb_accelerate.machine.files import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nb_accelerate.machine.roots import Roots

__all__ = ["cgroup_folders"]


def cgroup_folders(roots: Roots, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroups under `controller`, v2 and v1, innermost first.

    A container shows its own cgroup as the root of /sys/fs/cgroup while /proc may name the path
    that the host knows it by: folders that do not exist are left out.
    """
    base = roots.sysfs / "fs" / "cgroup"
    own = read(roots.procfs / "self" / "cgroup")
    for controllers, path in re.findall(r"^\d+:([^:\n]*):(.*)$", own, re.MULTILINE):
        if controllers and controller not in controllers.split(","):
            continue
        for mount in dict.fromkeys((controllers, controller)) if controllers else ("", "unified"):
            leaf = base / mount / path.lstrip("/")
            around = [p for p in leaf.parents if p.is_relative_to(base / mount)]
            yield from (p for p in (leaf, *around) if p.is_dir())
