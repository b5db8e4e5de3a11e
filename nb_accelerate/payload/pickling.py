"""The pickler of all payloads: code by value with its file names, big data beside the pickle."""

from __future__ import annotations

import functools
import io
import sys
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import cloudpickle  # type: ignore[import-untyped]

from nb_accelerate.payload.names import importable, travels_by_name
from nb_accelerate.payload.storages import reduce_optimizer, storage_reducers

if TYPE_CHECKING:
    import pickle
    from collections.abc import Callable

__all__ = [
    "BIG_BYTES",
    "CODE_REDUCERS",
    "ByValuePickler",
    "Pickled",
    "keeping_known_class",
    "pickled",
    "track_classes",
]

CACHED = functools._lru_cache_wrapper  # noqa: SLF001 - the type has no public name

BIG_BYTES = 64 * 1024
"""From here on, mapping memory is cheaper than copying it."""


@dataclass(frozen=True, slots=True)
class Pickled:
    """A pickle, and the buffers that stay where they are until somebody writes them."""

    body: bytes
    buffers: tuple[memoryview, ...]
    filenames: frozenset[str]
    """co_filename of each code object that is pickled by value."""

    @property
    def num_bytes(self) -> int:
        """All that has to travel."""
        return len(self.body) + sum(buffer.nbytes for buffer in self.buffers)


def pickled(obj: object, *, redefine_classes: bool = True) -> Pickled:
    """Pickle by value, with buffers of `BIG_BYTES` and more left in place.

    `redefine_classes`: a class that the receiver has already got is overwritten, as the kernel's
    edits should be; without, the receiver's class stays as it is, as the kernel's own should.

    Raises:
        Exception: whatever the pickling of `obj` raises.
    """
    buffers: list[memoryview] = []

    def stays_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= BIG_BYTES:
            buffers.append(raw)
        return raw.nbytes < BIG_BYTES

    file = io.BytesIO()
    pickler = ByValuePickler(file, stays_in_band, redefine_classes=redefine_classes)
    pickler.dump(obj)
    return Pickled(file.getvalue(), tuple(buffers), frozenset(pickler.filenames))


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle that keeps file names, and knows torch storages and unimportable modules."""

    def __init__(
        self,
        file: io.BytesIO,
        buffer_callback: Callable[[pickle.PickleBuffer], bool] | None = None,
        *,
        redefine_classes: bool = True,
    ) -> None:
        self.filenames: set[str] = set()
        # A plain dictionary, made before the C pickler reads it: cloudpickle's ChainMap costs a
        # Python-level look-up for every object.
        self.dispatch_table = {
            **cloudpickle.Pickler.dispatch_table,
            CodeType: functools.partial(_reduce_code, filenames=self.filenames),
            CACHED: _reduce_cached,
            **storage_reducers(),
        }
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._redefine_classes = redefine_classes
        self._seen_modules: set[str] = set()
        self._registered: list[ModuleType] = []

    def dump(self, obj: object) -> None:
        """Write the pickle of `obj`."""
        try:
            super().dump(obj)
        finally:
            for module in self._registered:
                with suppress(ValueError):  # another thread's dump has done so
                    cloudpickle.unregister_pickle_by_value(module)

    def reducer_override(self, obj: object) -> Any:  # noqa: ANN401 - as pickle declares it
        """Decide on functions, classes and modules; all else goes the ordinary way."""
        if not isinstance(obj, (type, FunctionType, ModuleType)):
            return reduce_optimizer(obj)
        name = obj.__name__ if isinstance(obj, ModuleType) else getattr(obj, "__module__", None)
        if isinstance(name, str):
            self._send_by_value_if_unimportable(name)
        reduced = super().reducer_override(obj)
        if not isinstance(obj, type):
            return reduced
        reduced = _keeping_slots(reduced, obj)
        return reduced if self._redefine_classes else keeping_known_class(reduced)

    def _send_by_value_if_unimportable(self, name: str) -> None:
        if name in self._seen_modules:
            return
        self._seen_modules.add(name)
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and name != "__main__" and not importable(name):
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)


# ---------------------------------------------------------------- code
def _reduce_code(code: CodeType, filenames: set[str] | None = None) -> tuple[Any, ...]:
    """As cloudpickle does, which since 3.1 replaces co_filename by "<dynamic-code>"."""
    if filenames is not None:
        filenames.add(code.co_filename)
    return CodeType, (
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals),
        *(code.co_stacksize, code.co_flags, code.co_code, code.co_consts, code.co_names),
        *(code.co_varnames, code.co_filename, code.co_name, code.co_qualname),
        *(code.co_firstlineno, code.co_linetable, code.co_exceptiontable),
        *(code.co_freevars, code.co_cellvars),
    )


def _reduce_cached(cached: Any) -> Any:  # noqa: ANN401 - a function under functools.lru_cache
    if travels_by_name(cached):
        return cached.__reduce__()
    # Two steps, since a cached function that calls itself refers to the cache.
    make = (cached.cache_parameters(),)
    return _empty_cached, make, cached.__wrapped__, None, None, _fill_cached


def _empty_cached(parameters: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as above
        return vars(call)["function"](*args, **kwargs)

    return functools.lru_cache(**parameters)(call)


def _fill_cached(cached: Any, function: FunctionType) -> None:  # noqa: ANN401 - as above
    cached.__wrapped__.function = function
    functools.update_wrapper(cached, function)


CODE_REDUCERS: dict[type, Callable[[Any], Any]] = {
    **{
        kind: reducer
        for kind, reducer in cloudpickle.Pickler.dispatch_table.items()
        # cloudpickle turns an open file into a copy of its text, a view into bytes: no child
        # process of the user's asked for that.
        if kind not in (io.TextIOWrapper, memoryview)
    },
    CodeType: _reduce_code,
    CACHED: _reduce_cached,
}
"""How the parts of functions and classes are pickled, for picklers that are not ours."""


# ---------------------------------------------------------------- classes
def _keeping_slots(reduced: Any, kind: type) -> Any:  # noqa: ANN401 - whatever cloudpickle gives
    """A class's reduction with its `__slots__` in place when it is made.

    cloudpickle makes the class first and sets `__slots__` afterwards, when it has no effect:
    instances then have a dictionary, which the original class refuses when they come back.
    """
    maker = cloudpickle.cloudpickle._make_skeleton_class  # noqa: SLF001 - it has no public name
    is_made = isinstance(reduced, tuple) and reduced[0] is maker
    if not is_made or not vars(kind).get("__slots__"):
        return reduced
    make, (constructor, name, bases, settings, *rest), *others = reduced
    settings = {**settings, "__slots__": vars(kind)["__slots__"]}
    return make, (constructor, name, bases, settings, *rest), *others


def keeping_known_class(reduced: Any) -> Any:  # noqa: ANN401 - whatever cloudpickle gives
    """A class's reduction, changed so that a class which the receiver has is left as it is.

    cloudpickle finds the receiver's own class, and then replaces its methods by copies whose
    globals are not the receiver's: a class of the kernel would change when a value returns.
    """
    if not isinstance(reduced, tuple) or len(reduced) != 6:
        return reduced
    make, args, state, _, _, fill = reduced
    return _class_or_skeleton, (make, *args), (fill, state), None, None, _fill_skeleton


def track_classes() -> None:
    """Let every class that travels by value be known again when a forked copy sends it back."""
    waiting: list[type] = [object]
    seen: set[type] = set()
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        for kind in subclasses:
            if kind in seen:
                continue
            seen.add(kind)
            waiting.append(kind)
            if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
                cloudpickle.cloudpickle._get_or_create_tracker_id(kind)  # noqa: SLF001


def _class_or_skeleton(make: Callable[..., type], *args: object) -> type:
    # The tracker's key is the last argument but one of both of cloudpickle's class makers.
    tracked = cast("dict[object, type]", cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID)  # noqa: SLF001
    is_known = args[-2] in tracked
    made = make(*args)
    if not is_known:
        made.__nb_accelerate_skeleton__ = True  # type: ignore[attr-defined]
    return made


def _fill_skeleton(made: type, state: tuple[Callable[[type, object], object], object]) -> None:
    if "__nb_accelerate_skeleton__" in vars(made):
        del made.__nb_accelerate_skeleton__  # type: ignore[attr-defined]
        fill, content = state
        fill(made, content)
