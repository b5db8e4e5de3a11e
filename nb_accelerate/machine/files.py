"""Small files that a system tells by, which may be missing or not for us to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["number", "read"]


def read(file: Path) -> str:
    """The text without its last line break; "" when it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def number(*files: Path) -> int | None:
    """The number in the first of `files` that holds one."""
    return next((int(text) for text in map(read, files) if text.isdecimal()), None)
