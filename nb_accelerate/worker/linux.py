"""What Linux does for a process when it is asked; elsewhere these do nothing."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "adopt_orphans",
    "end_with_parent",
    "line_buffered_c_output",
    "name_process",
    "without_name_servers",
]

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# <stdio.h>
_IOLBF = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when the thread that forked it ends.

    The parent may have died before the call: then nothing would ever be sent, so look.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died, so that they can be found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def line_buffered_c_output() -> None:
    """Let C libraries' printf reach the pipe line by line; into a pipe, C holds back 4 KiB."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
        libc.setvbuf(stdout, None, _IOLBF, 0)


def name_process(name: str) -> None:
    """Be called so in `top` and `ps`; at most 15 characters."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


@contextmanager
def without_name_servers() -> Iterator[None]:
    """Let host names be looked up in files only.

    TCPStore asks for the name of each address that it connects to, ::ffff:127.0.0.1 included. No
    hosts file has that, so a name server is asked, and one that is slow, lossy or out of reach
    held a launch for 5 s (measured: 1 connection in 30). glibc lets a process choose its sources.
    """
    configure = getattr(ctypes.CDLL(None), "__nss_configure_lookup", None)
    if configure is None:  # not glibc
        yield
        return
    configure(b"hosts", b"files")
    try:
        yield
    finally:
        configure(b"hosts", _host_sources().encode())


@functools.cache
def _host_sources() -> str:
    """The system's own choice, and glibc's where there is none."""
    try:
        switches = Path("/etc/nsswitch.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        switches = ""
    found = re.search(r"^\s*hosts:\s*([^#\n]+)", switches, re.MULTILINE)
    return found.group(1).strip() if found else "dns [!UNAVAIL=return] files"
