"""Seeds of everything that draws random numbers, and generators that draw the same on all ranks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from .ambient import collectives_here
from .joining import replica_here
from .rng import take_from_rank_0

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["set_seed", "synchronize_rng_state", "synchronize_rng_states"]


def set_seed(
    seed: int,
    device_specific: bool = False,  # noqa: FBT001, FBT002  # upstream's order
    deterministic: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Seed `random`, numpy and torch on all devices.

    Args:
        seed: the same on every rank.
        device_specific: let each rank draw other numbers: its rank is added.
        deterministic: allow only operations that give the same result each time.
    """
    if device_specific:
        seed += replica_here().rank
    random.seed(seed)
    np.random.seed(seed % 2**32)  # the global generator is the one to seed
    torch.manual_seed(seed)  # all devices; those that are not initialised take it over later
    if deterministic:
        torch.use_deterministic_algorithms(mode=True)


def synchronize_rng_states(
    rng_types: Iterable[object], generator: torch.Generator | None = None
) -> None:
    """Let random generators of all ranks go on as rank 0's. Every rank must call it.

    Args:
        rng_types: which: "torch" (the CPU's), a device such as "cuda", "generator"; names, or
            members of Accelerate's RNGType.
        generator: what "generator" means.

    Raises:
        SpecError: there is no such generator, or it was not given.
    """
    for rng_type in rng_types:
        synchronize_rng_state(rng_type, generator)


def synchronize_rng_state(
    rng_type: object = None, generator: torch.Generator | None = None
) -> None:
    """One of them, see `synchronize_rng_states`."""
    name = str(getattr(rng_type, "value", rng_type))
    take_from_rank_0(name, generator, collectives_here())
