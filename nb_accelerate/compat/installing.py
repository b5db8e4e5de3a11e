"""Making `import accelerate` lead here."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.metadata import Distribution, DistributionFinder
from typing import TYPE_CHECKING, NoReturn

from nb_accelerate.errors import SpecError

from .mirror import PACKAGE
from .table import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from os import PathLike

__all__ = ["install", "installed", "is_installed", "uninstall"]

_NAME = "accelerate"


class _Metadata(Distribution):
    """What `importlib.metadata.version("accelerate")` finds: which API this is."""

    def read_text(self, filename: str) -> str | None:
        """The two files that are asked for; None of any other."""
        version = sys.modules[PACKAGE].__version__
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {version}\n",
            "top_level.txt": _NAME,
        }
        return texts.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> NoReturn:
        """There are none."""
        raise FileNotFoundError(f"{path}: {_NAME} is nb_accelerate here, which has no such file.")


class _Finder(DistributionFinder):
    """Tells importlib.metadata of our `accelerate`, and nothing of any other package."""

    workers_import = PACKAGE
    """The launcher has workers call its `install()` too."""

    def find_spec(self, *_: object) -> ModuleSpec | None:
        """Modules are not looked for here: they are in `sys.modules` already."""
        return None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """The one distribution, if it or all are asked for."""
        if context is None or context.name in (None, _NAME):
            yield _Metadata()


def install() -> None:
    """Make `import accelerate`, and everything below it, lead to this package.

    In this process, and in the workers of every launch from it, until `uninstall()`. An installed
    Accelerate is hidden, not touched. Doing it twice changes nothing.

    Raises:
        SpecError: Accelerate has been imported already, and would stay in use where it was.
    """
    if is_installed():
        return
    if _NAME in sys.modules:
        raise SpecError(
            "nb_accelerate.compat.install() was called, but Accelerate itself has been imported in "
            "this process already, and modules that hold its classes would go on using them. Call "
            "install() before anything imports accelerate, transformers or peft: restart the "
            "kernel and make it the first cell."
        )
    sys.modules[_NAME] = sys.modules[PACKAGE]
    for module in MODULES:
        sys.modules[f"{_NAME}.{module}"] = sys.modules[f"{PACKAGE}.{module}"]
    sys.meta_path.insert(0, _Finder())


def uninstall() -> None:
    """Take `install()` back: `import accelerate` finds what is installed by that name, if any.

    What has been imported meanwhile keeps what it has got.
    """
    if not is_installed():
        return
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{_NAME}.")]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def is_installed() -> bool:
    """Whether `import accelerate` leads here."""
    return sys.modules.get(_NAME) is sys.modules[PACKAGE]


@contextmanager
def installed() -> Iterator[None]:
    """Within it, `import accelerate` leads here."""
    before = is_installed()
    install()
    try:
        yield
    finally:
        if not before:
            uninstall()
