"""Walking data that holds tensors: lists, tuples, named tuples and mappings keep their types."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

import torch

__all__ = [
    "Anything",
    "Nested",
    "are_tensors",
    "flatten",
    "map_leaves",
    "map_tensors",
    "with_values",
]

Nested: TypeAlias = Any
"""Tensors and other leaves in containers; its shape is known to the caller alone."""

Anything: TypeAlias = Any
"""A user's value that is passed on as it comes."""


def _nowhere(_: Nested) -> bool:
    return False


def map_leaves(
    function: Callable[[Nested], Nested],
    data: Nested,
    *,
    is_leaf: Callable[[Nested], bool] = _nowhere,
) -> Nested:
    """Apply `function` to all that is no container, or that `is_leaf` says is none."""
    if isinstance(data, torch.Tensor) or is_leaf(data):
        return function(data)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_leaves(function, item, is_leaf=is_leaf) for item in data))
    if isinstance(data, list | tuple):
        return type(data)(map_leaves(function, item, is_leaf=is_leaf) for item in data)
    if isinstance(data, Mapping):
        return with_values(
            data, {key: map_leaves(function, item, is_leaf=is_leaf) for key, item in data.items()}
        )
    return function(data)


def with_values(data: Mapping[Any, Nested], values: dict[Any, Nested]) -> Nested:
    """`data`'s own type with other values: defaultdict, BatchEncoding and ModelOutput included."""
    if type(data) is dict:
        return values
    if not isinstance(data, MutableMapping):
        return type(data)(values)  # type: ignore[call-arg]  # as immutable mappings have it
    twin = copy.copy(data)
    for key, value in values.items():
        twin[key] = value
    return twin


def are_tensors(data: Nested) -> bool:
    """Whether it is a list or tuple of tensors alone."""
    if type(data) is not list and type(data) is not tuple:
        return False
    return bool(data) and all(type(item) is torch.Tensor for item in data)


def map_tensors(function: Callable[[torch.Tensor], Nested], data: Nested) -> Nested:
    """Apply `function` to the tensors in `data`; all else passes as it is."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, data)


def flatten(
    data: Nested, *, is_leaf: Callable[[Nested], bool] = _nowhere
) -> tuple[list[Nested], Callable[[list[Nested]], Nested]]:
    """The leaves of `data` in order, and a function that puts other leaves in their places."""
    if is_leaf is _nowhere and are_tensors(data):  # most data
        return list(data), type(data)
    leaves: list[Nested] = []
    map_leaves(leaves.append, data, is_leaf=is_leaf)

    def rebuild(others: list[Nested]) -> Nested:
        remaining = iter(others)
        return map_leaves(lambda _: next(remaining), data, is_leaf=is_leaf)

    return leaves, rebuild
