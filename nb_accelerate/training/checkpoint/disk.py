"""Disk: files that are there whole or not at all, and stay there when the power goes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nb_accelerate.replica import current_replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["files_in", "replace_file", "sync", "sync_tree"]


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file that takes the place of `path` when it is complete.

    A kill leaves the old file, and beside it one of a hidden name that the next call overwrites.
    """
    # By rank: on a disk that hosts share, their main processes may write the same file.
    partial = path.with_name(f".{path.name}.{current_replica().rank}.partial")
    try:
        write(partial)
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync_tree(folder: Path) -> None:
    """Have all that is in `folder` written to the disk."""
    for path in files_in(folder):
        if not path.is_symlink():
            sync(path)
    for name, _, _ in os.walk(folder):
        sync(Path(name))


def files_in(folder: Path) -> Iterator[Path]:
    """Every file below `folder`."""
    return (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def sync(path: Path) -> None:
    """Have a file, or a folder's list of names, written to the disk."""
    if not path.is_dir():
        _sync(path)
        return
    with suppress(OSError):  # not every file system knows this of folders
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
