"""Running what a user's class defines: its pickling, its repr, its constructor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Failed", "attempt", "spoken"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failed:
    """What a user's code raised instead of answering."""

    error: Exception


def attempt(call: Callable[[], T]) -> T | Failed:
    """The call's answer, or what it raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - __reduce__, __repr__ and __init__ may raise anything
        return Failed(error)


def spoken(value: object) -> str:
    """`repr(value)`, whatever its class makes of that."""
    text = attempt(lambda: repr(value))
    return f"<{type(value).__qualname__}>" if isinstance(text, Failed) else text
