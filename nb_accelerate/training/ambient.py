"""Ambient: what code without an Accelerator stands on, such as accelerate.utils' functions."""

from __future__ import annotations

from .collectives import Collectives
from .engine import engine_for
from .gradient_state import passes_here
from .joining import asks_for_cpu, replica_here

__all__ = ["collectives_here", "passes_here"]


def collectives_here() -> Collectives:
    """The collectives of the current replica. The first look joins its group, as torchrun says."""
    return Collectives(engine_for(replica_here(), cpu=asks_for_cpu()))
