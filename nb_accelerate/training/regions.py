"""Regions: compiling the blocks that a model repeats, each on its own, so that one serves all."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch import nn

if TYPE_CHECKING:
    from .nested import Anything

__all__ = ["compile_regions", "has_repeated_blocks", "is_repeated_blocks"]

M = TypeVar("M", bound=nn.Module)


def compile_regions(module: M, **compile_kwargs: Anything) -> M:
    """Compile the blocks of each ModuleList of one class, and what surrounds them, one by one.

    Blocks that are alike are compiled once, so that the first step comes much sooner than when the
    model is compiled as a whole. The model itself is compiled: no other is made, names and weights
    stay (Accelerate makes a twin of it).

    Args:
        module: the model.
        compile_kwargs: for `torch.compile`.
    """
    if is_repeated_blocks(module):
        for block in module.children():
            block.compile(**compile_kwargs)
    elif has_repeated_blocks(module):
        for child in module.children():
            compile_regions(child, **compile_kwargs)
    else:
        module.compile(**compile_kwargs)
    return module


def is_repeated_blocks(module: nn.Module) -> bool:
    """Whether it is a ModuleList of one class of blocks."""
    blocks = list(module.children()) if isinstance(module, nn.ModuleList) else []
    return bool(blocks) and all(isinstance(block, type(blocks[0])) for block in blocks)


def has_repeated_blocks(module: nn.Module) -> bool:
    """Whether a part of it is a ModuleList of one class of blocks."""
    return any(is_repeated_blocks(part) for part in module.modules())
