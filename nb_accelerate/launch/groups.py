"""Process groups: each rank leads one, and its children are in it."""

from __future__ import annotations

import os

__all__ = ["signal_group"]


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a rank and its children, as far as they still are."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return
