"""Operations: the collectives as functions, on the current replica. The names are Accelerate's."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from nb_accelerate.errors import DistributedOperationException, SpecError

from .ambient import collectives_here
from .engine import engine_for
from .joining import asks_for_cpu, replica_here
from .nested import Anything, Nested, flatten

if TYPE_CHECKING:
    from .collectives import Reduction

__all__ = [
    "CannotPadNestedTensorWarning",
    "DistributedOperationException",
    "broadcast",
    "broadcast_object_list",
    "copy_tensor_to_devices",
    "gather",
    "gather_object",
    "pad_across_processes",
    "reduce",
    "wait_for_everyone",
]


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor has no one size along an axis, so it was left as it is."""


def wait_for_everyone() -> None:
    """Return once every rank has come here."""
    collectives_here().barrier()


def gather(tensor: Nested) -> Nested:
    """Concatenate each tensor over the ranks, as `Accelerator.gather`."""
    return collectives_here().gather(tensor)


def gather_object(object: Anything) -> list[Any]:  # noqa: A002  # upstream's name for it
    """The ranks' lists in one, as `Accelerator.gather_object`."""
    return collectives_here().gather_object(object)


def reduce(tensor: Nested, reduction: Reduction = "mean", scale: float = 1.0) -> Nested:
    """Combine each tensor over the ranks, as `Accelerator.reduce`; by default the mean."""
    return collectives_here().reduce(tensor, reduction, scale)


def broadcast(tensor: Nested, from_process: int = 0) -> Nested:
    """Fill tensors in place with those of one rank, and return them."""
    return collectives_here().broadcast(tensor, from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Fill a list in place with the objects of one rank's, and return it."""
    return collectives_here().broadcast_objects(object_list, from_process)


def pad_across_processes(
    tensor: Nested,
    dim: int = 0,
    pad_index: float = 0,
    pad_first: bool = False,  # noqa: FBT001, FBT002  # upstream's order
) -> Nested:
    """Bring each tensor to the largest size that any rank has along `dim`.

    Nested tensors are left as they are, with a warning.
    """
    leaves, rebuild = flatten(tensor)
    numbers = [n for n, leaf in enumerate(leaves) if not getattr(leaf, "is_nested", False)]
    if len(numbers) == len(leaves):
        return collectives_here().pad(tensor, dim, pad_index=pad_index, pad_first=pad_first)
    warnings.warn(
        "pad_across_processes leaves nested tensors as they are: they have no one size to pad to.",
        CannotPadNestedTensorWarning,
        stacklevel=2,
    )
    if not numbers:
        return tensor
    plain = collectives_here().pad(
        [leaves[n] for n in numbers], dim, pad_index=pad_index, pad_first=pad_first
    )
    for number, padded in zip(numbers, plain, strict=True):
        leaves[number] = padded
    return rebuild(leaves)


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor that one rank has, on every rank's device. The others pass None.

    Raises:
        SpecError: no rank has one.
    """
    collectives = collectives_here()
    mine = None if tensor is None else (tensor.dtype, tuple(tensor.shape))
    everyone = collectives.gather_object([mine])
    source = next((rank for rank, one in enumerate(everyone) if one is not None), None)
    if source is None:
        raise SpecError("copy_tensor_to_devices was given None on every rank: one must have it.")
    dtype, shape = everyone[source]
    device = engine_for(replica_here(), cpu=asks_for_cpu()).device
    copy = torch.empty(shape, dtype=dtype, device=device)
    if tensor is not None and collectives.rank == source:
        copy.copy_(tensor)
    return collectives.broadcast(copy, source)  # type: ignore[no-any-return]  # as it was given
