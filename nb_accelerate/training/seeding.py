"""Seeds of everything that draws random numbers."""

from __future__ import annotations

import random

import numpy as np
import torch

from nb_accelerate.replica import current_replica

__all__ = ["set_seed"]


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
        seed += current_replica().rank
    random.seed(seed)
    np.random.seed(seed % 2**32)  # the global generator is the one to seed
    torch.manual_seed(seed)  # all devices; those that are not initialised take it over later
    if deterministic:
        torch.use_deterministic_algorithms(mode=True)
