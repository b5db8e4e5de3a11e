"""Memory: giving it back, and finding the batch size that fits into it."""

from __future__ import annotations

import functools
import gc
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

import torch

from .ambient import collectives_here
from .engine import engine_for
from .joining import asks_for_cpu, replica_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from .collectives import Collectives

__all__ = [
    "clear_device_cache",
    "find_executable_batch_size",
    "release_memory",
    "should_reduce_batch_size",
]

P = ParamSpec("P")
R = TypeVar("R")

# What runtimes say when memory is short, apart from those that raise torch.OutOfMemoryError.
_SHORTAGES = (
    " out of memory",
    "can't allocate memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
    "PT_DEVMEM Allocation failed",
    "RESOURCE_EXHAUSTED",
)


def clear_device_cache(garbage_collection: bool = False) -> None:  # noqa: FBT001, FBT002  # upstream's
    """Give device memory that nothing uses back to the device.

    Args:
        garbage_collection: look for objects in reference cycles first, which takes time.
    """
    if garbage_collection:
        gc.collect()
    engine_for(replica_here(), cpu=asks_for_cpu()).empty_cache()


def release_memory(*objects: object) -> list[None]:
    """Give back the memory of objects that nothing else holds, and what caches hold for more.

    A variable of the caller's holds its object until it is assigned.

    Returns:
        None for each, to put in its place: `model, loader = release_memory(model, loader)`.
    """
    count = len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return [None] * count


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Whether an exception tells of too little memory."""
    if isinstance(exception, torch.OutOfMemoryError | MemoryError):
        return True
    is_plain = isinstance(exception, RuntimeError) and len(exception.args) == 1
    return is_plain and any(words in str(exception) for words in _SHORTAGES)


@overload
def find_executable_batch_size(
    function: None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Callable[[Callable[Concatenate[int, P], R]], Callable[P, R]]: ...
@overload
def find_executable_batch_size(
    function: Callable[Concatenate[int, P], R],
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Callable[P, R]: ...
def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Callable[..., Any]:
    """Decorate a function to be called with a batch size that fits into memory.

    It is called with `starting_batch_size` before its other arguments. When that is too much, it is
    called again with nine tenths of it, and so on, on all ranks: one rank's shortage is everyone's.
    Each call of the decorated function starts from `starting_batch_size` anew.

    The ranks agree when the function has come back on each of them, with or without a shortage.
    A rank that waits in a collective for one that is short of memory cannot come back: then the
    collective ends by its own timeout, or the launch does. Ranks that are short together, the usual
    case with equal batches, are not held up.

    Args:
        function: what to call; its first argument is the batch size.
        starting_batch_size: the first to try.
        reduce_batch_size_fn: gives the next one to try. Rank 0's counts.

    Raises:
        RuntimeError: even a batch size of 1 is too much.
        TypeError: the decorated function was called with a batch size of the caller's.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )

    @functools.wraps(function)
    def fitted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the user's
        _require_fitting(function, args, kwargs)
        collectives = collectives_here()
        size = int(starting_batch_size)
        while size > 0:
            clear_device_cache(garbage_collection=True)
            value, is_short = _attempted(function, size, args, kwargs)
            if not _anywhere(is_short, collectives):
                return value
            del value
            size = reduce_batch_size_fn() if reduce_batch_size_fn else size * 9 // 10
            size = collectives.agreed(int(size))
        raise RuntimeError(
            f"No executable batch size found: {_name_of(function)} ran out of memory with all from "
            f"{starting_batch_size} down."
        )

    return fitted


def _attempted(
    function: Callable[..., Any], size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, bool]:
    """What it returned, and whether it was short of memory."""
    try:
        return function(size, *args, **kwargs), False
    except (RuntimeError, MemoryError) as error:
        if not should_reduce_batch_size(error):
            raise
    # Here the error is gone, and with it the frames that held the memory.
    return None, True


def _anywhere(is_so: bool, collectives: Collectives) -> bool:  # noqa: FBT001
    if collectives.world_size == 1:
        return is_so
    return collectives.any(is_so)


def _require_fitting(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind_partial(0, *args, **kwargs)
    except TypeError as error:
        first = next(iter(signature.parameters), "batch_size")
        raise TypeError(
            f"{_name_of(function)} was called with arguments that do not fit: {error}. Its "
            f"{first!r} comes from find_executable_batch_size: leave it out of the call."
        ) from error


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
