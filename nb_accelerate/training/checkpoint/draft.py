"""Drafts: a folder is written out of sight, and takes its place at once when it is complete.

Where there is no folder of that name yet, one rename does it. Where there is one, which may hold
other things too, the draft is renamed to `.0-finished` within it: from that moment on it counts.
Its files then take the places of the old ones; a kill between two of them leaves the rest in
`.0-finished`, and `finish`, which every later reader and writer calls first, goes on with it.
"""

from __future__ import annotations

import errno
import glob
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nb_accelerate.errors import SpecError

from .disk import files_in, sync, sync_tree

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = ["Draft", "discard_folder", "finish", "full_path"]

# Accelerate reads a number in the name of everything that lies among automatically named
# checkpoints; with 0 it takes neither of these for the newest.
_UNFINISHED = ".0-unfinished"
_FINISHED = ".0-finished"
_PLAN = ".plan.json"
_REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Draft:
    """A folder that is being written.

    Attributes:
        target: what it is to become, an absolute path.
        token: tells it from all other drafts; always as long.
        is_within: whether it lies in the target, since that exists, or beside it.
    """

    target: Path
    token: str
    is_within: bool

    @classmethod
    def of(cls, target: Path, token: str) -> Draft:
        """A draft that is not begun yet."""
        return cls(target, token, target.is_dir())

    @property
    def folder(self) -> Path:
        """Where to write. Its last part is the target's, which hooks may read a number from."""
        return self._home / self.target.name

    @property
    def _home(self) -> Path:
        return self._drafts / f"{self.token}-{self.target.name}"

    @property
    def _drafts(self) -> Path:
        return (self.target if self.is_within else self.target.parent) / _UNFINISHED

    def begin(self) -> None:
        """Make the folder to write into; remove what earlier drafts of this target left."""
        finish(self.target)
        self._tidy()
        try:
            self.folder.mkdir(parents=True)
        except FileNotFoundError:  # another training has tidied up at this moment
            self.folder.mkdir(parents=True)

    def _tidy(self) -> None:
        for left in self._drafts.glob(f"{'?' * len(self.token)}-{glob.escape(self.target.name)}"):
            shutil.rmtree(left)
        shutil.rmtree(self._drafts / _REMOVED, ignore_errors=True)
        for left in self._drafts.glob("*"):
            with suppress(OSError):  # what has been published leaves an empty one
                left.rmdir()

    def discard(self) -> None:
        """Remove it."""
        shutil.rmtree(self._home, ignore_errors=True)
        with suppress(OSError):  # other drafts may be there
            self._drafts.rmdir()

    def publish(self, *, stale: Iterable[str] = (), must_be_new: bool = False) -> None:
        """Make it the target.

        Args:
            stale: what to remove of the target's old files, besides those that are replaced.
            must_be_new: fail when there is a target already.

        Raises:
            SpecError: there is one, though it must be new.
        """
        plan = {"stale": list(stale), "files": [str(p.relative_to(self.folder))
                                                for p in files_in(self.folder)]}  # fmt: skip
        sync_tree(self.folder)
        if self.is_within or not self._renamed(must_be_new=must_be_new):
            self._commit(plan)
        self.discard()

    def _renamed(self, *, must_be_new: bool) -> bool:
        try:
            self.folder.rename(self.target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if must_be_new:
                raise SpecError(
                    f"The folder {self.target} was to be written, but by now another process has "
                    f"made it. Give each training a project_dir of its own."
                ) from error
            return False
        sync(self.target.parent)
        return True

    def _commit(self, plan: dict[str, list[str]]) -> None:
        path = self.folder / _PLAN
        path.write_text(json.dumps(plan), encoding="utf-8")
        sync(path)
        self.folder.rename(self.target / _FINISHED)
        sync(self.target)
        finish(self.target)


def finish(target: Path) -> None:
    """Go on with what a kill has left of putting a complete draft in its place; else nothing."""
    finished = target / _FINISHED
    if not finished.is_dir():
        return
    if (finished / _PLAN).exists():  # else all are in place, but for the empty folder
        plan = json.loads((finished / _PLAN).read_text(encoding="utf-8"))
        for name in plan["files"]:
            _put(finished / name, target / name)
        for name in plan["stale"]:
            (target / name).unlink(missing_ok=True)
        sync_tree_of_names(target, plan["files"])
        (finished / _PLAN).unlink()
    shutil.rmtree(finished)


def sync_tree_of_names(target: Path, names: Iterable[str]) -> None:
    """Have the folders that hold these files written to the disk."""
    for folder in {(target / name).parent for name in names}:
        sync(folder)


def _put(source: Path, place: Path) -> None:
    if not (source.exists() or source.is_symlink()):  # it was put before the kill
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    source.replace(place)


def discard_folder(folder: Path) -> None:
    """Remove a folder: it is away at once, whatever happens during the removal."""
    grave = folder.parent / _UNFINISHED / _REMOVED
    grave.mkdir(parents=True, exist_ok=True)
    if (grave / folder.name).exists():
        shutil.rmtree(grave / folder.name)
    folder.rename(grave / folder.name)
    shutil.rmtree(grave)
    with suppress(OSError):
        grave.parent.rmdir()


def full_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path, links followed, so that a rename replaces what a link points to."""
    return Path(path).expanduser().resolve()
