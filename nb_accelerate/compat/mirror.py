"""Modules with upstream's paths, whose names are fetched from our rooms when they are first used.

Late, since importing one of them must neither cost torch nor fail for one of its names.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType

from .absent import stand_in
from .table import MODULES, TOP, absent_names, rooms

__all__ = ["PACKAGE", "Mirror", "mirror_all"]

PACKAGE = "nb_accelerate.compat"
_MISSING = object()


class Mirror(ModuleType):
    """One of upstream's modules."""

    @property
    def _upstream(self) -> str:
        """Its path below upstream's package; "" is the package itself."""
        return self.__name__.removeprefix(PACKAGE).removeprefix(".")

    def __getattr__(self, name: str) -> object:
        value = _find(self._upstream, name)
        if value is _MISSING:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Python puts a submodule into its package under its name. Upstream's utils.tqdm is a
        # module, but accelerate.utils.tqdm is the function in it.
        is_module = isinstance(value, Mirror)
        if not (is_module and f"{self._upstream}.{name}" == "utils.tqdm"):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *_offered(self._upstream)})

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)


def mirror_all(package: ModuleType) -> None:
    """Make the package itself and every module below it a mirror of upstream's."""
    package.__class__ = Mirror
    for module in sorted(MODULES):
        name = f"{package.__name__}.{module}"
        is_package = any(other.startswith(f"{module}.") for other in MODULES)
        mirror = Mirror(name, f"What `accelerate.{module}` offers.")
        mirror.__spec__ = ModuleSpec(name, None, is_package=is_package)
        mirror.__package__ = name if is_package else name.rpartition(".")[0]
        if is_package:
            mirror.__path__ = []
        sys.modules[name] = mirror
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, mirror)


def _find(module: str, name: str) -> object:
    """What upstream's module has under that name, or `_MISSING`."""
    if name == "__all__":
        return sorted(_offered(module))
    homes = _homes().get(name, ())
    # Upstream's modules import from each other: what another one has, this one may have too. The
    # programs among them are no one's source: each has a "main".
    others = [home for home in homes if not home.startswith("commands.")]
    home = module if module in homes else next(iter(others), None)
    return _MISSING if home is None else _fetched(home, name)


@cache
def _homes() -> dict[str, list[str]]:
    """Name → the modules that have it, `utils` first."""
    found: dict[str, list[str]] = {}
    for module in sorted(MODULES, key=lambda module: (not module.startswith("utils."), module)):
        for name in (*_present(module), *absent_names().get(module, ())):
            found.setdefault(name, []).append(module)
    return found


def _fetched(module: str, name: str) -> object:
    room = _present(module).get(name)
    return stand_in(module, name) if room is None else getattr(_room(room), name)


@cache
def _present(module: str) -> dict[str, str]:
    """The names that one module itself has and that are here → their rooms."""
    found: dict[str, str] = {}
    for name, room in rooms().get(module, {}).items():
        found |= dict.fromkeys(_room(room).__all__, room) if name.startswith("*") else {name: room}
    return found


def _room(name: str) -> ModuleType:
    return importlib.import_module(f"nb_accelerate.{name}")


def _offered(module: str) -> set[str]:
    """The names that `from module import *` gives: those that are here."""
    if module == "":
        absent = {name for names in absent_names().values() for name in names}
        return set(TOP - absent)
    own = [other for other in MODULES if other.startswith("utils.")] if module == "utils" else []
    return {name for place in (module, *own) for name in _present(place)}
