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
    "host_sources",
    "large_areas",
    "line_buffered_c_output",
    "name_process",
    "use_large_pages",
    "without_name_servers",
]

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# <linux/mman.h>
_MADV_COLLAPSE = 25
_LARGE_PAGE = 1 << 21
_AREA_BYTES = 1 << 25
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


def large_areas() -> list[tuple[int, int]]:
    """(address, bytes) of this process's own memory where whole large pages fit, in portions."""
    try:
        mappings = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    areas = []
    for mapping in mappings:
        addresses, mode, _, _, inode, *_ = mapping.split()
        if mode == "rw-p" and inode == "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            first, last = -(-start // _LARGE_PAGE) * _LARGE_PAGE, end // _LARGE_PAGE * _LARGE_PAGE
            areas += [(at, min(_AREA_BYTES, last - at)) for at in range(first, last, _AREA_BYTES)]
    return areas


def use_large_pages(address: int, size: int) -> None:
    """Keep this memory in pages of 2 MiB, if the system can (Linux 6.1 and later).

    A fork copies one table entry for each page, and a process's end takes them down: with torch's
    240 MB a fork takes 2 ms instead of 7, and a forked process half the processor time.
    """
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_COLLAPSE)


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
        configure(b"hosts", host_sources().encode())


@functools.cache
def host_sources() -> str:
    """The system's own choice, and glibc's where there is none."""
    try:
        switches = Path("/etc/nsswitch.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        switches = ""
    found = re.search(r"^\s*hosts:\s*([^#\n]+)", switches, re.MULTILINE)
    return found.group(1).strip() if found else "dns [!UNAVAIL=return] files"
