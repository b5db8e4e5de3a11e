"""Names of upstream's that this version does not have: they can be imported, but not be called.

Code in the wild imports many a name that it calls on some other machine, or never.
"""

from __future__ import annotations

from functools import cache
from typing import NoReturn

from nb_accelerate.errors import NotInThisVersion

__all__ = ["stand_in"]


@cache
def stand_in(module: str, name: str) -> object:
    """A class or a function, as its name is written, that refuses to be called.

    Args:
        module: where upstream has it, as "utils.deepspeed".
        name: what it is called there.
    """
    return _class(module, name) if _is_class(name) else _function(module, name)


def _is_class(name: str) -> bool:
    return name[0].isupper()


def _class(module: str, name: str) -> type:
    def refuse(_cls: type, *_args: object, **_kwargs: object) -> NoReturn:
        raise NotInThisVersion(_refusal(module, name))

    contents = {"__new__": refuse, "__module__": __name__, "__doc__": _refusal(module, name)}
    return type(name, (), contents)


def _function(module: str, name: str) -> object:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotInThisVersion(_refusal(module, name))

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = _refusal(module, name)
    return refuse


def _refusal(module: str, name: str) -> str:
    return (
        f"accelerate.{module}.{name} was called, but nb_accelerate does not have it in this "
        "version. Leave the call out, or run this part with Accelerate itself, in a process where "
        "nb_accelerate.compat is not installed."
    )
