"""Where torch.multiprocessing's ranks begin: a module on disk, since spawned ones import it."""

from __future__ import annotations

import os
import pickle
from typing import Any

__all__ = ["enter"]


def enter(rank: int, num_ranks: int, port: int, call: Any) -> None:
    """Set what torchrun would set, and call."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    function, args = pickle.loads(call) if isinstance(call, bytes) else call
    function(*args)
