"""What a value is made of, with the words for where each part was found."""

from __future__ import annotations

import dis
import functools
import sys
from dataclasses import dataclass
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
)
from typing import TYPE_CHECKING, Any

from nb_accelerate.payload.attempt import Failed, attempt
from nb_accelerate.payload.names import travels_by_name
from nb_accelerate.payload.pickling import CACHED, pickled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["WRAPPERS", "Part", "call_parts", "culprit_of", "failure_of", "parts_of", "type_name"]

WRAPPERS = (MethodType, functools.partial, classmethod, staticmethod, property, CACHED)
"""Types that stand on a function."""

OPEN_MODULES = frozenset({"builtins", "collections", "functools", "types", "dataclasses"})
"""Of the standard library's classes, those whose insides are the user's; a threading.Event's
lock is not."""


@dataclass(frozen=True, slots=True)
class Part:
    """A value on its way, and how the user would find it."""

    value: object
    path: str
    """An expression, such as "args[0].writer.lock"."""
    where: str
    """The variable that it belongs to, such as "closure variable `lock` of `train`"."""


def type_name(value: object) -> str:
    """The type as a user would write it."""
    kind = type(value)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{prefix}{kind.__qualname__}"


# ---------------------------------------------------------------- looking for a culprit
def failure_of(value: object) -> Exception | None:
    """Why this value, taken alone, cannot be pickled."""
    outcome = attempt(lambda: pickled(value))
    return outcome.error if isinstance(outcome, Failed) else None


def culprit_of(part: Part) -> Part:
    """The innermost part of one that cannot be pickled which cannot be pickled either."""
    seen = {id(part.value): part.value}
    while (inner := _failing_part(part, seen)) is not None:
        part = inner
    return part


def _failing_part(part: Part, seen: dict[int, object]) -> Part | None:
    for inner in parts_of(part):
        if id(inner.value) in seen:
            continue
        seen[id(inner.value)] = inner.value  # kept alive: a dead object's id is used again
        if failure_of(inner.value) is not None:
            return inner
    return None


# ---------------------------------------------------------------- parts
def call_parts(
    function: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    beside: Sequence[object] = (),
) -> list[Part]:
    """The function, each of its arguments, and what travels beside them."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return [
        Part(function, name, f"the function `{name}`"),
        *(Part(value, f"args[{i}]", f"argument {i + 1}") for i, value in enumerate(args)),
        *(Part(value, key, f"keyword argument `{key}`") for key, value in kwargs.items()),
        *(Part(value, type_name(value), "what travels beside the call") for value in beside),
    ]


def parts_of(part: Part) -> Iterator[Part]:
    """The values that are pickled along with this one, as far as they can be named."""
    value = part.value
    if isinstance(value, FunctionType):
        return iter(()) if travels_by_name(value) else _of_function(value)
    if isinstance(value, type):
        return iter(()) if travels_by_name(value) else _of_class(value)
    if isinstance(value, dict):
        return _of_mapping(value, part)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _of_items(value, part)
    if isinstance(value, WRAPPERS):
        return _of_wrapper(value, part)
    return iter(()) if _is_opaque(value) else _of_instance(value, part)


def _is_opaque(value: object) -> bool:
    module = type(value).__module__.partition(".")[0]
    return module in sys.stdlib_module_names and module not in OPEN_MODULES


def _of_function(function: FunctionType) -> Iterator[Part]:
    name, code = function.__qualname__.replace("<locals>.", ""), function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        content = attempt(lambda cell=cell: cell.cell_contents)  # type: ignore[misc]
        if not isinstance(content, Failed):  # not yet bound
            yield Part(content, variable, f"closure variable `{variable}` of `{name}`")
    for variable in _global_names(code):
        if variable in function.__globals__:
            content = function.__globals__[variable]
            yield Part(content, variable, f"global `{variable}` used by `{name}`")
    for variable, default in _defaults(function):
        yield Part(default, variable, f"default of parameter `{variable}` of `{name}`")
    for key, attribute in vars(function).items():
        yield Part(attribute, f"{name}.{key}", f"attribute `{key}` of `{name}`")


def _global_names(code: CodeType) -> dict[str, None]:
    """Names that the code or a function inside it takes from its module, in order of use."""
    names = {
        instruction.argval: None
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(_global_names(constant))
    return names


def _defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()


def _of_class(kind: type) -> Iterator[Part]:
    name = kind.__qualname__
    for base in filter(lambda base: not travels_by_name(base), kind.__bases__):
        yield Part(base, base.__qualname__, f"base class of `{name}`")
    for key, value in vars(kind).items():
        # What Python made for the class is made again with it.
        is_code = isinstance(value, (FunctionType, classmethod, staticmethod, property))
        is_made = isinstance(value, (GetSetDescriptorType, MemberDescriptorType))
        if is_code or not (is_made or key.startswith("__") or key == "_abc_impl"):
            yield Part(value, f"{name}.{key}", f"attribute `{key}` of class `{name}`")


def _of_mapping(mapping: Mapping[Any, Any], part: Part) -> Iterator[Part]:
    for key, value in list(mapping.items()):
        yield Part(value, f"{part.path}[{key!r}]", part.where)
        yield Part(key, f"a key of {part.path}", part.where)


def _of_items(items: Any, part: Part) -> Iterator[Part]:  # noqa: ANN401 - any iterable
    for i, item in enumerate(items):
        yield Part(item, f"{part.path}[{i}]", part.where)


def _of_wrapper(value: Any, part: Part) -> Iterator[Part]:  # noqa: ANN401 - several types
    """What a bound method, a partial, a property or the like stands on."""
    for name in ("__self__", "__func__", "func", "__wrapped__", "fget", "fset", "fdel"):
        inner = getattr(value, name, None)
        if inner is not None:
            yield Part(inner, f"{part.path}.{name}", part.where)
    if isinstance(value, functools.partial):
        yield from _of_items(value.args, Part(value, f"{part.path}.args", part.where))
        yield from _of_mapping(value.keywords, Part(value, f"{part.path}.keywords", part.where))


def _of_instance(value: object, part: Part) -> Iterator[Part]:
    """What its class says is needed to make it again."""
    reduced = attempt(lambda: value.__reduce_ex__(5))
    if not isinstance(reduced, tuple):
        return
    _, args, state, items, pairs = (*reduced, None, None, None)[:5]
    yield from _of_state(state, part)
    yield from _of_items(items or (), part)
    yield from _of_mapping(dict(pairs or ()), part)
    for i, argument in enumerate(args):
        is_class = isinstance(argument, type)
        path = argument.__qualname__ if is_class else f"{part.path}.__reduce_ex__(5)[1][{i}]"
        yield Part(argument, path, f"the class of {part.path}" if is_class else part.where)


def _of_state(state: object, part: Part) -> Iterator[Part]:
    match state:
        case dict():
            for key, value in state.items():
                yield Part(value, f"{part.path}.{key}", part.where)
        case (dict() | None as attributes, dict() as slots):
            yield from _of_state({**(attributes or {}), **slots}, part)
        case None:
            return
        case _:
            yield Part(state, f"{part.path}.__getstate__()", part.where)
