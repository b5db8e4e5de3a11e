"""What a fresh interpreter finds by name, and what must therefore travel by value."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from types import FunctionType

__all__ = ["found_by_name", "importable", "travels_by_name"]

FILE_LOADERS = (
    importlib.machinery.SourceFileLoader,
    importlib.machinery.SourcelessFileLoader,
    importlib.machinery.ExtensionFileLoader,
)


def travels_by_name(obj: type | FunctionType) -> bool:
    """Whether a worker can import this function or class, so that it runs the code on disk."""
    module = getattr(obj, "__module__", None)
    return module not in (None, "__main__") and found_by_name(obj) and importable(module)


def found_by_name(obj: type | FunctionType) -> bool:
    """Whether its module, as loaded here, holds it under its own name."""
    found: object = sys.modules.get(getattr(obj, "__module__", None) or "")
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def importable(name: str) -> bool:
    """Whether a fresh interpreter with this one's sys.path can import a module loaded here.

    It cannot when the module was made at run time, when its file is gone, or when it was loaded
    from a file that no import finds.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    package, _, inner = name.partition(".")
    if inner and not importable(package):
        return False
    if spec is None:
        # Packages put modules of their own making into sys.modules (torch._C._nn): they are made
        # again by importing the package.
        return bool(inner)
    return _file_is_there(spec) and (bool(inner) or _is_found(spec))


def _file_is_there(spec: importlib.machinery.ModuleSpec) -> bool:
    if not isinstance(spec.loader, FILE_LOADERS):
        return True  # built in, frozen, zipped, a namespace: nothing that a stray edit removes
    return Path(cast("str", spec.origin)).exists()


def _is_found(spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether the search for a top-level module leads to this very file."""
    if not isinstance(spec.loader, FILE_LOADERS):
        return True
    file = Path(cast("str", spec.origin))
    root = file.parent.parent if spec.submodule_search_locations is not None else file.parent
    # Only what lies outside of sys.path (editable installs, files loaded by hand) needs a search.
    return str(root) in sys.path or spec.origin in _origins(spec.name)


def _origins(name: str) -> list[str | None]:
    specs = [finder.find_spec(name, None) for finder in sys.meta_path]
    return [spec.origin for spec in specs if spec is not None]
