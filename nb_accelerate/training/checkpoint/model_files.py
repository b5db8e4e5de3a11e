"""Model files: a model alone, as other libraries read it: one file, or shards with an index."""

from __future__ import annotations

import os
import secrets
from typing import IO, TYPE_CHECKING, TypeAlias

import torch

from nb_accelerate.errors import CheckpointError, SpecError
from nb_accelerate.replica import current_replica

from .disk import replace_file
from .draft import Draft, full_path
from .names import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    SAFE_WEIGHTS_PATTERN_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    WEIGHTS_PATTERN_NAME,
)
from .shards import is_shard_of, split_state
from .weights import tensors_of, write_state, write_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from nb_accelerate.replica import Replica
    from nb_accelerate.training.nested import Anything

    from .shards import Shards

__all__ = ["Target", "save", "save_model_files", "write_object", "writes"]

Target: TypeAlias = str | os.PathLike[str] | IO[bytes]


def writes(replica: Replica, *, on_each_node: bool) -> bool:
    """Whether this rank writes what is the same on all ranks."""
    return replica.local_rank == 0 if on_each_node else replica.rank == 0


def save(
    obj: Anything,
    f: Target,
    save_on_each_node: bool = False,  # noqa: FBT001, FBT002  # upstream's order
    safe_serialization: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Write an object, on the main process alone; a file of that name is there whole or not at all.

    Args:
        obj: what torch.save takes; with `safe_serialization` a dict of tensors.
        f: a path or a binary file.
        save_on_each_node: on the first process of each host.
        safe_serialization: write it as safetensors, tied tensors once.
    """
    if writes(current_replica(), on_each_node=save_on_each_node):
        write_object(obj, f, safe=safe_serialization)


def write_object(obj: Anything, f: Target, *, safe: bool) -> None:
    """Write it to a path or a binary file."""
    if isinstance(f, str | os.PathLike):
        replace_file(full_path(f), lambda path: _write_file(obj, path, safe=safe))
    elif safe:
        from safetensors.torch import save as to_bytes

        f.write(to_bytes(tensors_of(obj), metadata={"format": "pt"}))
    else:
        torch.save(obj, f)


def _write_file(obj: Anything, path: Path, *, safe: bool) -> None:
    if safe:
        write_tensors(path, obj)
    else:
        torch.save(obj, path)


def save_model_files(
    model: nn.Module, folder: Path, max_shard_size: int | str, *, safe: bool
) -> None:
    """Write a model's weights to `folder`, in files of at most that size.

    What an earlier call has written and this one does not is removed.

    Raises:
        SpecError: `folder` is a file, or the size is none.
        CheckpointError: weights are on the meta device, so there are none.
    """
    if folder.is_file():
        raise SpecError(f"save_model writes to a folder, but {folder} is a file.")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise CheckpointError(
            "save_model was called for a model whose parameters are on the meta device: they have "
            "no values. Load its weights first."
        )
    pattern = SAFE_WEIGHTS_PATTERN_NAME if safe else WEIGHTS_PATTERN_NAME
    shards = split_state(model.state_dict(), pattern, max_shard_size, aliases=not safe)
    draft = Draft.of(full_path(folder), secrets.token_hex(8))
    draft.begin()
    try:
        _write(draft, shards, safe=safe)
        draft.publish(stale=_stale(draft, pattern, safe=safe))
    except BaseException:
        draft.discard()
        raise


def _write(draft: Draft, shards: Shards, *, safe: bool) -> None:
    for name, state in shards.files.items():
        write_state(draft.folder / name, state)
    if shards.index is not None:
        name = SAFE_WEIGHTS_INDEX_NAME if safe else WEIGHTS_INDEX_NAME
        (draft.folder / name).write_text(shards.index, encoding="utf-8")


def _stale(draft: Draft, pattern: str, *, safe: bool) -> list[str]:
    whole = (WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    if safe:
        whole = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    new = {path.name for path in draft.folder.iterdir()}
    old = {path.name for path in draft.target.iterdir()} if draft.is_within else set()
    return sorted(name for name in old - new if name in whole or is_shard_of(name, pattern))
