"""Values: what the ranks returned, unpacked when it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from nb_accelerate.errors import LaunchError

__all__ = ["Load", "Values"]

Load = Callable[[], object]


class Values(Sequence[object]):
    """The ranks' return values, by rank.

    Indexing a rank that has no value raises the `LaunchError` that says why. `returned()` gives
    those that are there.
    """

    def __init__(self, loads: Sequence[Load | LaunchError]) -> None:
        self._loads = list(loads)
        self._loaded: dict[int, object] = {}

    def __len__(self) -> int:
        return len(self._loads)

    @overload
    def __getitem__(self, rank: int) -> object: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[object]: ...
    def __getitem__(self, rank: int | slice) -> object:
        if isinstance(rank, slice):
            return [self[i] for i in range(*rank.indices(len(self)))]
        index = range(len(self))[rank]
        if index not in self._loaded:
            load = self._loads[index]
            if isinstance(load, LaunchError):
                raise load
            self._loaded[index] = load()
        return self._loaded[index]

    def returned(self) -> dict[int, object]:
        """The values of the ranks that have one, by rank."""
        return {
            rank: self[rank]
            for rank, load in enumerate(self._loads)
            if not isinstance(load, LaunchError)
        }

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it holds whatever the function returned

    def __repr__(self) -> str:
        return f"Values({self.returned()!r} of {len(self)} ranks)"
