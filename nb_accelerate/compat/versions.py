"""Which version of a package is installed, and whether that is enough."""

from __future__ import annotations

import importlib.metadata
import operator
from typing import TYPE_CHECKING

from packaging.version import Version, parse

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STR_OPERATION_TO_FUNC", "compare_versions", "is_torch_version", "torch_version"]

STR_OPERATION_TO_FUNC: dict[str, Callable[[Version, Version], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}

torch_version = parse(importlib.metadata.version("torch"))


def compare_versions(
    library_or_version: str | Version, operation: str, requirement_version: str
) -> bool:
    """Whether an installed package, or a version, stands in a relation to another version.

    Args:
        library_or_version: a distribution's name, or a version.
        operation: "<", ">=" and so on.
        requirement_version: what to compare with.

    Raises:
        ValueError: an operation that is none.
        importlib.metadata.PackageNotFoundError: no such distribution is installed.
    """
    if operation not in STR_OPERATION_TO_FUNC:
        known = ", ".join(STR_OPERATION_TO_FUNC)
        raise ValueError(f"operation={operation!r}, but it can be one of {known}.")
    version = library_or_version
    if isinstance(version, str):
        version = parse(importlib.metadata.version(version))
    return STR_OPERATION_TO_FUNC[operation](version, parse(requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    """Whether torch's version stands in a relation to another: `is_torch_version(">=", "2.8")`."""
    return compare_versions(torch_version, operation, version)
