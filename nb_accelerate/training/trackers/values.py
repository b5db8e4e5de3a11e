"""Values as trackers take them: numbers, from one-element tensors and numpy's own scalars too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["as_numbers", "plain"]


def as_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with what is one number as a number of Python's; the rest as it is."""
    return {name: _as_number(value) for name, value in values.items()}


def plain(value: Anything) -> Anything:
    """`value` of what YAML and JSON know alone; what they do not know as its text."""
    value = _as_number(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    return str(value)


def _as_number(value: Anything) -> Anything:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()  # waits for the device; trackers of such values do in any case
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    if isinstance(value, Mapping):
        return as_numbers(value)
    return value
