"""Batches: how many samples one has, how many of them are its own, and how it gets to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .nested import Anything, Nested, flatten, map_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Counted", "Placer", "batch_size_of", "is_sample_list", "on_device"]


class Counted(NamedTuple):
    """A batch and what `Pass` says of it; a tuple, so that a loader's worker can pin it.

    Attributes:
        batch: as the loader made it.
        size: its samples; None where it does not tell.
        real: how many of them are no repetitions; None when all are.
        state: of a stateful loader, once it has read this batch.
    """

    batch: Anything
    size: int | None = None
    real: int | None = None
    state: dict[str, Any] | None = None


class Placer:
    """Puts what a loader gives onto a device."""

    def __init__(self, device: torch.device, *, non_blocking: bool) -> None:
        self.device = device
        self.non_blocking = non_blocking

    def __call__(self, batch: Nested) -> Nested:
        """The batch, there."""
        return on_device(batch, self.device, non_blocking=self.non_blocking)


def on_device(data: Nested, device: torch.device, *, non_blocking: bool = False) -> Nested:
    """`data` with all that can move, tensors or not, on `device`; the rest passes as it is."""

    def move(leaf: Nested) -> Nested:
        if isinstance(leaf, torch.Tensor):
            there = leaf.device == device
            return leaf if there else leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    # Plain containers of tensors are most batches, and this is done for each: not by map_leaves.
    kind = type(data)
    if kind is list or kind is tuple:
        moved = [
            move(item)
            if type(item) is torch.Tensor
            else on_device(item, device, non_blocking=non_blocking)
            for item in data
        ]
        return moved if kind is list else tuple(moved)
    if kind is dict:
        return {
            key: move(item)
            if type(item) is torch.Tensor
            else on_device(item, device, non_blocking=non_blocking)
            for key, item in data.items()
        }
    return map_leaves(move, data, is_leaf=lambda leaf: hasattr(leaf, "to"))


def batch_size_of(batch: Nested) -> int | None:
    """Samples in a batch: the first axis of its first tensor, else the length of a plain list."""
    leaves, _ = flatten(batch)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    return len(batch) if isinstance(batch, list | tuple) else None


def is_sample_list(data: Nested, *, size: int | None) -> bool:
    """Whether `data` is a list or tuple of plain objects, one for each sample of a batch.

    A list of columns is not: its items are lists of that length, and it has another length itself.
    """
    if not isinstance(data, list | tuple):
        return False
    leaves, _ = flatten(data)
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return False
    return len(data) == size or not _are_columns(data, size)


def _are_columns(data: Sequence[Nested], size: int | None) -> bool:
    return bool(data) and all(isinstance(d, list | tuple) and len(d) == size for d in data)
