"""Tables: datasets of tensors, whose batches are indexed at once instead of row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset, TensorDataset, default_collate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import DataLoader

__all__ = ["Rows", "at_once"]


class Rows:
    """The rows of tensors, as a loader's fetcher asks for many at a time.

    Args:
        tensors: of equal length.
        chosen: numbers of the rows that count, (n,); None is all.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], chosen: torch.Tensor | None) -> None:
        self.tensors = tensors
        self.chosen = chosen

    def __len__(self) -> int:
        return len(self.tensors[0] if self.chosen is None else self.chosen)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        """What `default_collate` would make of these rows."""
        rows = torch.as_tensor(indices)
        if self.chosen is not None:
            rows = self.chosen[rows]
        return [tensor[rows] for tensor in self.tensors]


def at_once(loader: DataLoader[Any]) -> dict[str, Any]:
    """What to change in `loader` to read its batches at once; nothing where that is no gain.

    A TensorDataset, or a part of one, that is collated as by default gives the same so.
    """
    collates = loader.collate_fn is default_collate and loader.batch_sampler is not None
    rows = _rows_of(loader.dataset) if collates else None
    return {"dataset": rows, "collate_fn": _as_it_is} if rows is not None else {}


def _rows_of(dataset: object) -> Rows | None:
    if type(dataset) is TensorDataset:
        small = all(not tensor.is_sparse for tensor in dataset.tensors)
        return Rows(dataset.tensors, None) if small and dataset.tensors else None
    if type(dataset) is Subset:
        whole = _rows_of(dataset.dataset)
        if whole is not None:
            chosen = torch.as_tensor(dataset.indices, dtype=torch.int64)
            return Rows(whole.tensors, chosen if whole.chosen is None else whole.chosen[chosen])
    return None


def _as_it_is(batch: list[torch.Tensor]) -> list[torch.Tensor]:
    return batch
