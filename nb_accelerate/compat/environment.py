"""The environment, for code that reads and changes it through upstream's `utils.environment`.

Nothing of ours calls the functions that change it.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "CPUInformation",
    "are_libraries_initialized",
    "clear_environment",
    "convert_dict_to_env_variables",
    "get_cpu_distributed_information",
    "get_int_from_env",
    "parse_choice_from_env",
    "parse_flag_from_env",
    "patch_environment",
    "purge_accelerate_environment",
    "str_to_bool",
]

F = TypeVar("F", bound="Callable[..., Any]")

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:  # noqa: FBT001, FBT002  # upstream's
    """1 for "yes", "true", "on" and their like, 0 for their opposites; a bool with `to_bool`.

    Raises:
        ValueError: any other word.
    """
    word = value.lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(
            f"{value!r} is neither yes nor no. It can be one of {', '.join((*_TRUE, *_FALSE))}."
        )
    return word in _TRUE if to_bool else int(word in _TRUE)


def get_int_from_env(env_keys: Sequence[str], default: int) -> int:
    """The first of these variables that is set to 0 or more, else the default."""
    values = (int(os.environ.get(key, -1)) for key in env_keys)
    return next((value for value in values if value >= 0), default)


def parse_flag_from_env(key: str, default: bool = False) -> bool:  # noqa: FBT001, FBT002  # upstream's
    """Whether a variable says yes; `default` where it is not set."""
    return bool(str_to_bool(os.environ.get(key, str(default))))


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """A variable's text; `default` where it is not set."""
    return os.environ.get(key, str(default))


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Those of the names that have been imported in this process."""
    return [name for name in library_names if name in sys.modules]


@dataclass
class CPUInformation:
    """A process's place in a run on CPUs, as its launcher has put it into the environment."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """What torchrun, or one of three kinds of MPI, says of this process."""
    return CPUInformation(
        rank=get_int_from_env(_set_by_launchers("RANK", "PMI_RANK"), 0),
        world_size=get_int_from_env(_set_by_launchers("SIZE", "PMI_SIZE", "WORLD_SIZE"), 1),
        local_rank=get_int_from_env(_set_by_launchers("LOCAL_RANK", "MPI_LOCALRANKID"), 0),
        local_world_size=get_int_from_env(
            _set_by_launchers("LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"), 1
        ),
    )


def _set_by_launchers(mpi: str, intel: str, torchrun: str = "") -> tuple[str, ...]:
    """What torchrun, Intel's MPI, OpenMPI and MVAPICH call the same number."""
    return torchrun or mpi, intel, f"OMPI_COMM_WORLD_{mpi}", f"MV2_COMM_WORLD_{mpi}"


@contextmanager
def patch_environment(**kwargs: object) -> Iterator[None]:
    """Within it, variables have these values; their names are put in upper case."""
    patch = {name.upper(): str(value) for name, value in kwargs.items()}
    before = {name: os.environ.get(name) for name in patch}
    os.environ.update(patch)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def clear_environment() -> Iterator[None]:
    """Within it, the environment is empty; afterwards it is what it was."""
    before = dict(os.environ)
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def purge_accelerate_environment(func_or_cls: F) -> F:
    """Decorates a function or a class of tests, whose calls then leave no ACCELERATE_* behind.

    Of a class, its methods named `test*` are meant, and those of its heirs.
    """
    if not isinstance(func_or_cls, type):
        return _purging(func_or_cls)
    _purge_tests_of(func_or_cls)
    func_or_cls.__init_subclass__ = classmethod(_purge_heir)  # type: ignore[assignment,arg-type]
    return func_or_cls


def convert_dict_to_env_variables(current_env: Mapping[str, str]) -> list[str]:
    """Lines "NAME=value"; those that a shell would misread are left out, with a warning."""
    lines = []
    for name, value in current_env.items():
        if name and value and not set(name + value) & set(";\n<> "):
            lines.append(f"{name}={value}\n")
        else:
            _log().warning(
                "%s=%s is left out: a name and a value must not be empty, nor hold one of "
                "; < > a space or a line's end.", name, value,
            )  # fmt: skip
    return lines


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _without_traces() -> Iterator[None]:
    before = _of_accelerate()
    try:
        yield
    finally:
        _restore(dict.fromkeys(_of_accelerate()) | before)


def _of_accelerate() -> dict[str, str | None]:
    return {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}


def _purging(function: F) -> F:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # whatever it takes and gives
        with _without_traces():
            return function(*args, **kwargs)

    call.purges = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _purge_tests_of(kind: type) -> None:
    for name in [name for name in dir(kind) if name.startswith("test")]:
        method = getattr(kind, name)
        if callable(method) and not hasattr(method, "purges"):
            setattr(kind, name, _purging(method))


def _purge_heir(kind: type, **_settings: object) -> None:
    _purge_tests_of(kind)


def _log() -> logging.Logger:
    # Under upstream's name, which programs that configure its log know.
    return logging.getLogger("accelerate.utils.environment")
