"""What this kernel has started and is still there: to look at, and to end."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nb_accelerate.launch.template import template_of_this_kernel

if TYPE_CHECKING:
    import psutil

    from nb_accelerate.launch.run import Run

__all__ = ["ProcessInfo", "kill_all", "live_runs", "ps", "remember"]

_live: weakref.WeakSet[Run] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process that descends from this kernel's template."""

    pid: int
    name: str
    """nb-template, nb-keeper (of rendezvous stores), nb-rank-0 (at work or made ahead), or the
    name of a rank's own child."""
    memory_bytes: int
    status: str


def remember(run: Run) -> None:
    """Let `live_runs` and `kill_all` find it while it runs."""
    _live.add(run)


def live_runs() -> list[Run]:
    """The runs of this kernel that have not ended, oldest first."""
    return sorted((r for r in _live if r.status in ("starting", "running")), key=_started)


def _started(run: Run) -> float:
    return run.started


def ps() -> list[ProcessInfo]:
    """The processes that this kernel's launches have started and that still live."""
    return [info for pid in template_of_this_kernel().pids for info in _family(pid)]


def _family(pid: int) -> list[ProcessInfo]:
    import psutil

    found: list[ProcessInfo] = []
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                found.append(_info(process))
    return found


def kill_all() -> None:
    """End every run of this kernel, its template and the ranks made ahead; bounded in time.

    The next launch starts a new template.
    """
    for run in live_runs():
        run.stop()
    template_of_this_kernel().stop()


def _info(process: psutil.Process) -> ProcessInfo:
    with process.oneshot():
        return ProcessInfo(process.pid, process.name(), process.memory_info().rss, process.status())
