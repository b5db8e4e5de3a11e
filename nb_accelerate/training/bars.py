"""Bars: tqdm on one rank of each host."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import SpecError

from .joining import replica_here

if TYPE_CHECKING:
    from .nested import Anything

__all__ = ["tqdm"]


def tqdm(*args: Anything, main_process_only: bool = True, **kwargs: Anything) -> Any:  # noqa: ANN401
    """`tqdm.auto.tqdm`, shown on the first rank of each host alone.

    Args:
        args: as for tqdm's own.
        main_process_only: False shows the bars of all ranks.
        kwargs: as for tqdm's own.

    Raises:
        SpecError: the first argument is a bool, as older versions of Accelerate had it.
        ImportError: tqdm is not installed.
    """
    if args and isinstance(args[0], bool):
        raise SpecError(
            f"tqdm({args[0]}, ...): the first argument is what to iterate over. Say "
            f"main_process_only={args[0]} by its name."
        )
    try:
        bar = importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ImportError("tqdm() needs the package tqdm, which is not installed.") from error
    hidden = kwargs.pop("disable", False)
    if main_process_only and not hidden:
        hidden = replica_here().local_rank != 0
    return bar(*args, disable=hidden, **kwargs)
