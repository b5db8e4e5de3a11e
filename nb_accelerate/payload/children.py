"""What a worker's own children are sent: loader workers, pools, processes that a function starts.

`multiprocessing` pickles functions and classes by name. What a cell made has no name that a child
could import, so a spawned loader worker could not be given its dataset, nor could a forked one
hand back a batch of a class of the cell's.
"""

from __future__ import annotations

import io
import sys
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]

from nb_accelerate.payload.names import found_by_name
from nb_accelerate.payload.pickling import CODE_REDUCERS, keeping_known_class

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install_by_value_pickling"]


def install_by_value_pickling() -> None:
    """Make `multiprocessing` send by value what its children cannot find by name.

    For worker processes: it changes `ForkingPickler`, and with it every queue, pipe, pool and
    process of this one. What a child does find is sent as before. A child that receives something
    by value can send by value itself. Doing it twice changes nothing.
    """
    if "reducer_override" in vars(ForkingPickler):
        return
    present = ForkingPickler(io.BytesIO()).dispatch_table
    for kind, reducer in CODE_REDUCERS.items():
        if kind not in present:
            ForkingPickler.register(kind, reducer)
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign,assignment]


def _reduce(pickler: ForkingPickler, obj: object) -> Any:  # noqa: ANN401 - as pickle declares it
    # Decided per object and not by a second attempt at the whole: reducing a tensor twice would
    # share its memory twice, and nobody would ever fetch the first one's descriptor.
    if not isinstance(obj, (type, FunctionType)) or _is_found_by_child(obj):
        return NotImplemented
    # Functions that share their globals go on sharing them, which the inner pickler keeps track of.
    inner = vars(pickler).setdefault("by_value", cloudpickle.Pickler(io.BytesIO()))
    reduced = inner.reducer_override(obj)
    if not isinstance(reduced, tuple):
        return reduced
    make, args, *rest = keeping_known_class(reduced) if isinstance(obj, type) else reduced
    return (_arrive, (make, *args), *rest)


def _is_found_by_child(obj: type | FunctionType) -> bool:
    if getattr(obj, "__module__", None) == "__main__" and not _main_can_run_again():
        return False
    return found_by_name(obj)


def _main_can_run_again() -> bool:
    """Whether a spawned child gets this process's `__main__`: a script's, not a notebook's."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or hasattr(main, "__file__")


def _arrive(make: Callable[..., object], *args: object) -> object:
    install_by_value_pickling()
    return make(*args)
