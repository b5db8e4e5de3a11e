"""Index: what a checkpoint of ours holds, and at which point of the training it was made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .disk import files_in
from .names import INDEX_NAME, RNG_STATE_NAME, belongs_to_a_state

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Index", "is_complete", "read_index", "write_index"]

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What Accelerate's files have no place for.

    Attributes:
        token: also in random_states_0.pkl, unless Accelerate has written another state since.
        windows: by rank, the windows of accumulation that are open.
        files: their sizes in bytes.
    """

    token: str
    world_size: int
    windows: list[list[dict[str, Any]]]
    files: dict[str, int] = field(default_factory=dict)
    format: int = _FORMAT


def write_index(folder: Path, index: Index) -> None:
    """Write it, with the files that are there now."""
    sizes = {
        path.name: path.stat().st_size
        for path in sorted(files_in(folder))
        if path.parent == folder and belongs_to_a_state(path.name)
    }
    text = json.dumps(asdict(index) | {"files": sizes}, indent=1) + "\n"
    (folder / INDEX_NAME).write_text(text, encoding="utf-8")


def read_index(folder: Path) -> Index | None:
    """The folder's index; None in a folder that Accelerate has written."""
    path = folder / INDEX_NAME
    if not path.exists():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    if values.pop("format") != _FORMAT:  # of a later version, which the rest can be loaded without
        return None
    return Index(**values)


def is_complete(folder: Path) -> bool:
    """Whether all is there that was written; for a folder of Accelerate's, what it writes last."""
    index = read_index(folder)
    if index is None:
        return (folder / f"{RNG_STATE_NAME}_0.pkl").exists()
    return all(
        (folder / name).exists() and (folder / name).stat().st_size == size
        for name, size in index.files.items()
    )
