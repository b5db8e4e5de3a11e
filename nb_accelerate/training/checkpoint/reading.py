"""Reading what torch.save has written, without running what others may have put into it."""

from __future__ import annotations

import codecs
import pickle
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from nb_accelerate.errors import UnsafeCheckpoint

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import IO

    from nb_accelerate.training.nested import Anything

__all__ = ["load"]


def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: Anything = None,
    **kwargs: Anything,
) -> Anything:
    """As torch.load, but objects of classes are refused, apart from tensors and numpy's arrays.

    Args:
        f: a path or a binary file.
        map_location: as torch has it.
        kwargs: for torch.load; `weights_only=False` builds objects of any class.

    Raises:
        UnsafeCheckpoint: it holds an object whose loading could run any code.
    """
    checked = kwargs.setdefault("weights_only", True)
    with safe_globals(_numbers()) if checked else nullcontext():
        try:
            return torch.load(f, map_location=map_location, **kwargs)
        except pickle.UnpicklingError as error:
            found = ", ".join(_classes_in(f) if checked else [])
            if not found:
                raise
            raise UnsafeCheckpoint(
                f"{getattr(f, 'name', f)} holds {found}: to load such an object is to "
                f"run what its file says, whoever has written it. If you trust its origin, load "
                f"it with weights_only=False (load_state: load_kwargs={{'weights_only': False}})."
            ) from error


def _numbers() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """What numpy's arrays and scalars are built with: data alone."""
    array = cast("Callable[..., Any]", np.empty(0).__reduce__()[0])
    scalar = cast("Callable[..., Any]", np.float64(0).__reduce__()[0])
    named = [
        (function, f"numpy.{core}.multiarray.{name}")  # as numpy 1 and numpy 2 name it
        for function, name in ((array, "_reconstruct"), (scalar, "scalar"))
        for core in ("core", "_core")
    ]
    dtypes = [one for one in vars(np.dtypes).values() if isinstance(one, type)]
    return [*named, np.ndarray, np.dtype, codecs.encode, *dtypes]


def _classes_in(f: str | os.PathLike[str] | IO[bytes]) -> list[str]:
    """The classes and functions that the file asks for and that are not allowed."""
    if not isinstance(f, str) and hasattr(f, "seek"):
        f.seek(0)
    try:
        return sorted(get_unsafe_globals_in_checkpoint(f))
    except ValueError:  # a file of a kind that cannot be searched
        return []
