"""Exceptions across processes: of their own class, with attributes, chain and traceback.

An exception is taken apart rather than pickled: pickle calls its class with `args`, which fails or
lies for every class whose constructor takes something else. Here such a class is not called; the
built-in exception that it stands on is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from nb_accelerate.errors import PayloadError, WorkerRaised
from nb_accelerate.payload.attempt import Failed, attempt, spoken
from nb_accelerate.payload.captures import failure_of, type_name
from nb_accelerate.payload.parcel import Packed, pack, unpack
from nb_accelerate.payload.traces import Place, rebuilt, written

if TYPE_CHECKING:
    from types import TracebackType

    from nb_accelerate.messages import Parcel

__all__ = ["pack_error", "unpack_error"]


@dataclass(frozen=True, slots=True)
class _Apart:
    """An exception taken apart."""

    kind: type[BaseException]
    args: tuple[object, ...]
    attributes: dict[str, object]
    whole: BaseException | None
    """The exception itself, when its class defines how it is pickled; the above is empty then."""
    places: tuple[Place, ...]
    """Its traceback."""
    is_context_hidden: bool
    members: tuple[_Apart, ...] = ()
    """Of an exception group."""
    cause: _Apart | None = None
    context: _Apart | None = None


def pack_error(error: BaseException) -> Packed | None:
    """Pack an exception with its traceback and chain; None when it cannot be rebuilt.

    Attributes and arguments that cannot travel are replaced by their repr. Causes and contexts
    that cannot travel are replaced by a `WorkerRaised` that tells of them.
    """
    apart = _take_apart(error, {})
    if apart is None:
        return None
    packed = attempt(lambda: pack(apart, redefine_classes=False))
    return None if isinstance(packed, Failed) else packed


def unpack_error(parcel: Parcel, fd: int | None) -> tuple[BaseException, TracebackType | None]:
    """The exception that `pack_error` packed, and its traceback. Closes `fd`.

    Raises:
        PayloadError: this process cannot rebuild it, say for lack of a module.
    """
    error = attempt(lambda: _put_together(unpack(parcel, fd)))
    if isinstance(error, Failed):
        raise PayloadError(
            f"An exception came from a worker and cannot be rebuilt here: {error.error!r}."
        ) from error.error
    return error, error.__traceback__


# ---------------------------------------------------------------- apart
_Seen: TypeAlias = dict[int, BaseException]


def _take_apart(error: BaseException, seen: _Seen) -> _Apart | None:
    seen[id(error)] = error
    alone = _verified(_own_part(error, seen))
    if alone is None:
        return None
    cause = _relative(error.__cause__, seen)
    is_same = error.__context__ is error.__cause__  # after `raise ... from ...`
    context = cause if is_same else _relative(error.__context__, seen)
    return replace(alone, cause=cause, context=context)


def _relative(error: BaseException | None, seen: _Seen) -> _Apart | None:
    """A cause, context or member, or what stands in for it; chains may be circular."""
    if error is None or id(error) in seen:
        return None
    return _take_apart(error, seen) or _take_apart(_stand_in(error), seen)


def _stand_in(error: BaseException) -> WorkerRaised:
    kind, text = type_name(error), attempt(lambda: str(error))
    words = kind if isinstance(text, Failed) else f"{kind}: {text}"
    return WorkerRaised(words, type_name=kind).with_traceback(error.__traceback__)


def _own_part(error: BaseException, seen: _Seen) -> _Apart:
    kind, places = type(error), written(error.__traceback__)
    hidden = error.__suppress_context__
    if _defines_pickling(kind):
        return _Apart(kind, (), {}, error, places, hidden)
    args, attributes = _state(error)
    members: tuple[_Apart, ...] = ()
    if isinstance(error, BaseExceptionGroup):
        args = (error.message,)
        members = tuple(m for e in error.exceptions if (m := _relative(e, seen)) is not None)
    return _Apart(kind, args, attributes, None, places, hidden, members)


def _state(error: BaseException) -> tuple[tuple[object, ...], dict[str, object]]:
    """Its arguments as the built-in class wants them, and its attributes, notes among them."""
    reduced = _native(type(error)).__reduce__(error)
    args, attributes = (*reduced[1:], None)[:2]
    return (
        tuple(_travelling(value) for value in args),
        {key: _travelling(value) for key, value in (attributes or {}).items()},
    )


def _travelling(value: object) -> object:
    return value if failure_of(value) is None else spoken(value)


def _native(kind: type[BaseException]) -> type[BaseException]:
    """The built-in exception that a class stands on."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _defines_pickling(kind: type[BaseException]) -> bool:
    owners = [
        next(base for base in kind.__mro__ if name in vars(base))
        for name in ("__reduce__", "__reduce_ex__")
    ]
    return any(owner.__module__ != "builtins" for owner in owners)


def _verified(apart: _Apart) -> _Apart | None:
    """The same, if it comes out of a round trip as an exception of its own class."""

    def round_trip() -> BaseException:
        with pack(apart, redefine_classes=False) as packed:
            fd = None if packed.fd is None else os.dup(packed.fd)
            return _put_together(unpack(packed.parcel, fd))

    again = attempt(round_trip)
    return apart if type(again) is apart.kind else None


# ---------------------------------------------------------------- together
def _put_together(apart: object) -> BaseException:
    assert isinstance(apart, _Apart)  # noqa: S101 - only pack_error makes such parcels
    error = apart.whole if apart.whole is not None else _made(apart)
    if apart.cause is not None:
        error.__cause__ = _put_together(apart.cause)
    if apart.context is not None:
        is_same = apart.context is apart.cause
        error.__context__ = error.__cause__ if is_same else _put_together(apart.context)
    error.__suppress_context__ = apart.is_context_hidden
    return error.with_traceback(rebuilt(apart.places))


def _made(apart: _Apart) -> BaseException:
    native = _native(apart.kind)
    args = apart.args
    if apart.members:
        args = (*args, [_put_together(member) for member in apart.members])
    error = native.__new__(apart.kind, *args)
    native.__init__(error, *args)
    error.__setstate__(apart.attributes)
    return error
