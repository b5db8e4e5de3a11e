"""Roles: who this replica is among the others, and who does what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

import torch

from nb_accelerate.errors import SpecError

if TYPE_CHECKING:
    from nb_accelerate.replica import Replica

    from .nested import Anything

__all__ = ["Roles", "share_of"]

P = ParamSpec("P")
R = TypeVar("R")


class Roles:
    """A replica's place, and what follows from it; the heir knows the replica.

    The decorators are resolved when the decorated function is called; the ranks that it is not
    meant for return None.
    """

    @property
    def _replica(self) -> Replica:
        raise NotImplementedError

    @property
    def num_processes(self) -> int:
        """How many replicas train together."""
        return self._replica.world_size

    @property
    def process_index(self) -> int:
        """This replica's rank among all."""
        return self._replica.rank

    @property
    def local_process_index(self) -> int:
        """This replica's rank on its host."""
        return self._replica.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self._replica.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first rank on its host."""
        return self._replica.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the rank with the highest number."""
        return self._replica.rank == self._replica.world_size - 1

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one replica."""
        return self._replica.world_size > 1

    def wait_for_everyone(self) -> None:
        """Return once every rank has come here. Every rank must call it."""
        raise NotImplementedError

    def print(self, *args: Anything, **kwargs: Anything) -> None:
        """Print, on the main process alone."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201  # it is what was asked for

    # ------------------------------------------------------------ decorators
    def on_main_process(
        self, function: Callable[P, R] | None = None
    ) -> Callable[P, R | None] | functools.partial[Any]:
        """Decorate a function to run on rank 0 alone."""
        return self._only_if(lambda: self.is_main_process, function)

    def on_local_main_process(
        self, function: Callable[P, R] | None = None
    ) -> Callable[P, R | None] | functools.partial[Any]:
        """Decorate a function to run on the first rank of each host."""
        return self._only_if(lambda: self.is_local_main_process, function)

    def on_last_process(
        self, function: Callable[P, R] | None = None
    ) -> Callable[P, R | None] | functools.partial[Any]:
        """Decorate a function to run on the last rank alone."""
        return self._only_if(lambda: self.is_last_process, function)

    def on_process(
        self, function: Callable[P, R] | None = None, process_index: int = 0
    ) -> Callable[P, R | None] | functools.partial[Any]:
        """Decorate a function to run on one rank alone."""
        return self._only_if(lambda: self.process_index == process_index, function)

    def on_local_process(
        self, function: Callable[P, R] | None = None, local_process_index: int = 0
    ) -> Callable[P, R | None] | functools.partial[Any]:
        """Decorate a function to run on one rank of each host."""
        return self._only_if(lambda: self.local_process_index == local_process_index, function)

    def _only_if(
        self, meant: Callable[[], bool], function: Callable[P, R] | None
    ) -> Callable[P, R | None] | functools.partial[Any]:
        if function is None:  # used with arguments: @accelerator.on_process(process_index=1)
            return functools.partial(self._only_if, meant)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
            return function(*args, **kwargs) if meant() else None

        return guarded

    # ------------------------------------------------------------ contexts
    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The main process runs the block first, the others when it is through, or has raised."""
        with self._first(self.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """As `main_process_first`, on each host."""
        with self._first(self.is_local_main_process):
            yield

    @contextmanager
    def _first(self, am_first: bool) -> Iterator[None]:  # noqa: FBT001
        if not am_first:
            self.wait_for_everyone()
        try:
            yield
        finally:
            if am_first:
                self.wait_for_everyone()

    @contextmanager
    def split_between_processes(
        self,
        inputs: Anything,
        apply_padding: bool = False,  # noqa: FBT001, FBT002  # upstream's order
    ) -> Iterator[Any]:
        """This rank's part of `inputs`: contiguous, the first ranks one longer where it must be.

        A dict is split value by value. A rank for which nothing is left gets an empty part, unless
        `apply_padding` repeats the last element so that all parts are equally long.

        Raises:
            SpecError: the values of a dict are not equally long.
        """
        yield share_of(
            inputs, self._replica.rank, self._replica.world_size, apply_padding=apply_padding
        )


class _Sliceable(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Anything: ...


class _Dataset(Protocol):
    def select(self, indices: list[int], /) -> Anything: ...


def share_of(
    inputs: Anything, rank: int, world_size: int, *, apply_padding: bool = False
) -> Anything:
    """One rank's part of `inputs`; what cannot be sliced is shared whole."""
    if world_size == 1 or isinstance(inputs, str | bytes):
        return inputs
    if isinstance(inputs, Mapping):
        _require_equal_lengths(inputs)
        return {
            key: share_of(value, rank, world_size, apply_padding=apply_padding)
            for key, value in inputs.items()
        }
    if not (hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__")):
        return inputs
    return _slice_of(inputs, rank, world_size, apply_padding=apply_padding)


def _slice_of(inputs: _Sliceable, rank: int, world_size: int, *, apply_padding: bool) -> Anything:
    shortest, longer = divmod(len(inputs), world_size)
    start = rank * shortest + min(rank, longer)
    stop = start + shortest + (rank < longer)
    missing = shortest + bool(longer) - (stop - start) if apply_padding else 0
    if hasattr(inputs, "column_names"):  # a datasets.Dataset, whose slices are plain dicts
        return cast("_Dataset", inputs).select([*range(start, stop), *[len(inputs) - 1] * missing])
    part = inputs[start:stop]
    if not missing or not len(inputs):
        return part
    last = inputs[len(inputs) - 1 :]
    if isinstance(part, torch.Tensor):
        return torch.cat([part, *[last] * missing])
    if isinstance(part, list | tuple):
        return part + last * missing
    raise SpecError(
        f"split_between_processes(apply_padding=True) can pad lists, tuples, tensors and datasets, "
        f"not a {type(inputs).__name__}."
    )


def _require_equal_lengths(inputs: Mapping[Any, Any]) -> None:
    lengths = {key: len(value) for key, value in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise SpecError(f"The values of a dict must be equally long to be split, not {lengths}.")
