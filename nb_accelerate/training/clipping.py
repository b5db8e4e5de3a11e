"""Clipping gradients: only when they are complete, and at their true size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from .prepared import by_identity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .prepared import Prepared

__all__ = ["clip_norm", "clip_value"]


def clip_norm(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    limit: tuple[float, float],
    prepared: Prepared,
    complete: bool,  # noqa: FBT001
) -> torch.Tensor:
    """Clip to `limit`, a (max_norm, norm_type), if the gradients are complete.

    Returns:
        The norm that they had; of one rank's own part while they are not complete.
    """
    max_norm, norm_type = limit
    own = _listed(parameters)
    if not complete:
        return get_total_norm([p.grad for p in own if p.grad is not None], norm_type)
    _unscale(own, prepared)
    return clip_grad_norm_(own, max_norm, norm_type)


def clip_value(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    limit: float,
    prepared: Prepared,
    complete: bool,  # noqa: FBT001
) -> None:
    """Clamp each element to [-limit, limit], if the gradients are complete."""
    own = _listed(parameters)
    if complete:
        _unscale(own, prepared)
        clip_grad_value_(own, limit)


def _listed(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _unscale(parameters: list[torch.Tensor], prepared: Prepared) -> None:
    """Unscale through those optimizers alone that hold any of these: once for each step."""
    asked = by_identity(parameters)
    for optimizer in prepared.optimizers:
        held = (p for group in optimizer.param_groups for p in group["params"])
        if any(id(parameter) in asked for parameter in held):
            optimizer.unscale()
