"""Gathering for metrics: exactly the samples of the dataset, in the order of the sampler."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .batches import is_sample_list
from .nested import Anything, Nested, are_tensors, flatten

if TYPE_CHECKING:
    from .collectives import Collectives
    from .passes import Pass

__all__ = ["gather_for_metrics"]


def gather_for_metrics(
    data: Nested,
    collectives: Collectives,
    current: Pass | None,
    *,
    use_gather_object: bool = False,
) -> Nested:
    """`data` of all ranks in one, without the samples that only filled up a batch.

    Tensors are concatenated along their first axis; a list or tuple of plain objects, one for each
    sample, likewise; any other value becomes a list of the ranks' values. Containers stay.

    Args:
        data: what a rank made of its batch.
        collectives: who gathers.
        current: the pass whose batch it was made of.
        use_gather_object: take `data` as one list of objects, also when it holds tensors.
    """
    if collectives.world_size == 1:
        return data
    size, real = (current.size, current.real) if current is not None else (None, None)
    if use_gather_object:
        return collectives.gather_object(_kept(data, size, real))
    if are_tensors(data):
        leaves, rebuild = flatten(data)
    else:
        leaves, rebuild = flatten(data, is_leaf=partial(is_sample_list, size=size))
    return rebuild(_gathered([_kept(leaf, size, real) for leaf in leaves], collectives))


def _gathered(leaves: list[Nested], collectives: Collectives) -> list[Nested]:
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    tensors_of_all = iter(collectives.gather_rows(tensors) if tensors else ())
    # One exchange for all that is no tensor, transposed: from each rank's leaves to each leaf's.
    others_of_all = zip(*collectives.gather_object([others]), strict=True) if others else iter(())
    return [
        next(tensors_of_all) if isinstance(leaf, torch.Tensor) else _joined(next(others_of_all))
        for leaf in leaves
    ]


def _joined(values: tuple[Any, ...]) -> Anything:
    """What the ranks hold in one place: their sample lists as one, other values as a list."""
    if isinstance(values[0], list | tuple):
        return type(values[0])(item for value in values for item in value)
    return list(values)


def _kept(leaf: Nested, size: int | None, real: int | None) -> Nested:
    """The real rows of what has one row for each sample of the batch; anything else whole."""
    if real is None or not isinstance(leaf, torch.Tensor | list | tuple):
        return leaf
    if isinstance(leaf, torch.Tensor) and leaf.ndim == 0:
        return leaf
    return leaf[:real] if len(leaf) == size else leaf
