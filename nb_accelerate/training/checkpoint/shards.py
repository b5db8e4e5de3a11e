"""Shards: a model's weights in files of a size that can be moved, with an index of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nb_accelerate.errors import SpecError

from .weights import unaliased

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Shards", "is_shard_of", "parsed_size", "split_state"]

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("B", 1000), ("IB", 1024))
}


@dataclass(slots=True)
class Shards:
    """State dicts by the names of their files, and how large all tensors are together."""

    files: dict[str, dict[str, Any]]
    total_bytes: int

    @property
    def index(self) -> str | None:
        """Which tensor is in which file, as JSON; None for a single file."""
        if len(self.files) == 1:
            return None
        places = {name: file for file, state in self.files.items() for name in state}
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": places}
        return json.dumps(index, indent=2, sort_keys=True) + "\n"


def split_state(
    state: Mapping[str, Any], pattern: str, max_shard_size: int | str, *, aliases: bool
) -> Shards:
    """Distribute tensors, in their order, over files of at most `max_shard_size` bytes.

    A tensor that is larger alone has a file of its own. Tied tensors come into one file.

    Args:
        state: names and tensors.
        pattern: the files' name, with "{suffix}" in it.
        max_shard_size: bytes, or a number with a unit: "5GB", "500MB", "2GiB".
        aliases: keep a tensor under all names that it has.

    Raises:
        SpecError: a size that cannot be.
    """
    limit = parsed_size(max_shard_size)
    parts: list[_Part] = [_Part()]
    homes: dict[object, _Part] = {}
    for name, value in (state if aliases else unaliased(state)).items():
        storage = _storage_of(value)
        if storage is not None and storage in homes:
            homes[storage].state[name] = value
            continue
        if parts[-1].state and parts[-1].size + _bytes_of(value) > limit:
            parts.append(_Part())
        parts[-1].add(name, value)
        homes[storage] = parts[-1]
    return Shards(dict(_named(parts, pattern)), sum(part.size for part in parts))


@dataclass(slots=True, eq=False)
class _Part:
    state: dict[str, Any] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, value: object) -> None:
        self.state[name] = value
        self.size += _bytes_of(value)


def _named(parts: list[_Part], pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, part in enumerate(parts, 1):
        suffix = f"-{number:05d}-of-{len(parts):05d}" if len(parts) > 1 else ""
        yield pattern.format(suffix=suffix), part.state


def _storage_of(value: object) -> object:
    if not isinstance(value, torch.Tensor) or value.is_meta or not value.numel():
        return None
    return value.device, value.untyped_storage().data_ptr()


def _bytes_of(value: object) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def parsed_size(size: int | str) -> int:
    """Bytes of a size with a unit.

    Raises:
        SpecError: it is none.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(size))
    if found is None or (unit := found[2].upper()) not in _UNITS or float(found[1]) <= 0:
        raise SpecError(
            f"max_shard_size={size!r} is no size. Write a number of bytes, or one with a unit: "
            f"'500MB', '10GB', '2GiB'."
        )
    return int(float(found[1]) * _UNITS[unit])


def is_shard_of(name: str, pattern: str) -> bool:
    """Whether a file of that name is one of several that `pattern` stands for."""
    before, after = map(re.escape, pattern.split("{suffix}"))
    return re.fullmatch(rf"{before}-\d{{5}}-of-\d{{5}}{after}", name) is not None
