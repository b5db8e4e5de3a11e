"""Offspring: the processes that this one has forked or adopted; how they end and are ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import resource
    from collections.abc import Container

__all__ = [
    "children_here",
    "environment_names",
    "kill",
    "next_ended",
    "signal_group",
    "signal_one",
]


def next_ended(leaders: Container[int]) -> tuple[int, int, resource.struct_rusage] | None:
    """A child that has ended: its id, wait status and usage; a leader's whole group is killed."""
    try:
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid in leaders:
                signal_group(pid, signal.SIGKILL)
            return (pid, status, usage) if pid else None
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        if ended.si_pid in leaders:
            # While it is not reaped, its number cannot become another group's.
            signal_group(ended.si_pid, signal.SIGKILL)
        return os.wait4(ended.si_pid, 0)
    except ChildProcessError:
        return None


def signal_group(pid: int, number: int) -> None:
    """Send it to all of the group that `pid` leads; to `pid` alone when it leads none."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or not yet a session of its own
        signal_one(pid, number)


def signal_one(pid: int, number: int) -> None:
    """Send it, if the process is still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill(pid: int) -> None:
    """End it at once, if it is still there."""
    signal_one(pid, signal.SIGKILL)


def children_here() -> list[int]:
    """All children, adopted ones included."""
    try:
        listing = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(pid) for pid in listing.split()]


def environment_names(pid: int, run_ids: set[str]) -> bool:
    """Whether the process was started within one of these runs."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(run_id.encode() in environment for run_id in run_ids)
