"""The one reader of `os.environ`; it writes nothing there.

A worker's environment is the kernel's, less what an earlier launcher left in it, plus what
torchrun would set, so that code written for torchrun runs unchanged.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nb_accelerate.machine import survey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nb_accelerate.machine import Machine
    from nb_accelerate.messages import Rendezvous
    from nb_accelerate.plan import Seat

__all__ = [
    "import_time_settings",
    "kernel_environment",
    "rank_environment",
    "run_root",
    "survey_here",
    "with_rendezvous",
]

# torchrun's variables: those of a launch that this kernel itself is part of are not ours.
_STALE = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
)
_STALE_PREFIXES = ("TORCHELASTIC_", "PMI_", "OMPI_", "MV2_")
_SURVEY_SECONDS = 60
# Read once, when a library is loaded: a template started under others is out of date.
_IMPORT_TIME_PREFIXES = (
    "TORCH",
    "PYTORCH",
    "PYTHON",
    "LD_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
)


def kernel_environment() -> dict[str, str]:
    """The kernel's environment as it is now."""
    return dict(os.environ)


def survey_here() -> Machine:
    """What this host has, as the kernel's environment lets it be seen; looked up once a minute."""
    return _surveyed(tuple(os.environ.items()), int(time.monotonic() / _SURVEY_SECONDS))


@functools.lru_cache(maxsize=1)
def _surveyed(environment: tuple[tuple[str, str], ...], _period: int) -> Machine:
    return survey(dict(environment))


def run_root(wanted: str | None) -> Path:
    """Where run folders go: as asked, else the user's state directory (XDG base directories)."""
    if wanted:
        return Path(wanted).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "nb_accelerate" / "runs"


def import_time_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries read when they are loaded."""
    return {k: v for k, v in environment.items() if k.startswith(_IMPORT_TIME_PREFIXES)}


def rank_environment(base: Mapping[str, str], seat: Seat) -> dict[str, str]:
    """A rank's environment, less the meeting point (`with_rendezvous`)."""
    clean = {k: v for k, v in base.items() if k not in _STALE and not k.startswith(_STALE_PREFIXES)}
    return clean | _torchrun_variables(seat) | _loopback_variables(seat)


def with_rendezvous(
    environment: Mapping[str, str], rendezvous: Rendezvous, run_id: str
) -> dict[str, str]:
    """The same with where the ranks meet."""
    return {
        **environment,
        "MASTER_ADDR": rendezvous.host,
        "MASTER_PORT": str(rendezvous.port),
        "TORCHELASTIC_RUN_ID": run_id,
    }


def _torchrun_variables(seat: Seat) -> dict[str, str]:
    numbers = {
        "RANK": seat.rank,
        "LOCAL_RANK": seat.local_rank,
        "WORLD_SIZE": seat.world_size,
        "LOCAL_WORLD_SIZE": seat.local_world_size,
        "GROUP_RANK": seat.node_rank,
        "GROUP_WORLD_SIZE": seat.num_nodes,
        "ROLE_RANK": seat.rank,
        "ROLE_WORLD_SIZE": seat.world_size,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "OMP_NUM_THREADS": seat.num_threads,
    }
    return {name: str(number) for name, number in numbers.items()} | {
        "ROLE_NAME": "default",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _loopback_variables(seat: Seat) -> dict[str, str]:
    """One machine talks over loopback only, whatever its host name resolves to."""
    if seat.num_nodes > 1:
        return {}
    interface = _loopback_interface()
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


@functools.cache
def _loopback_interface() -> str:
    return "lo" if Path("/sys/class/net/lo").exists() else "lo0"
