"""Joining: how a process that another launcher started, such as torchrun, becomes a replica.

The one place in this room that reads the environment: what a launcher says there, and what
Accelerate's variables ask for.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils.data import get_worker_info

from nb_accelerate.errors import SpecError
from nb_accelerate.replica import SOLO, Replica, current_replica, ground_replica, settle

from .torch_engine import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "asked_accumulation_steps",
    "asked_precision_here",
    "asks_for_cpu",
    "environment",
    "is_to_join",
    "is_yes",
    "leave_group",
    "leave_own_group",
    "replica_here",
]

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_GLOO_SECONDS = 0.05
_YES = {"1", "true", "yes", "on", "y", "t"}


def environment() -> Mapping[str, str]:
    """This process's environment, to read."""
    return os.environ


def is_yes(text: str) -> bool:
    """Whether a variable's text means yes, as Accelerate reads it."""
    return text.strip().lower() in _YES


def asks_for_cpu() -> bool:
    """Whether ACCELERATE_USE_CPU asks to leave accelerators alone."""
    return is_yes(environment().get("ACCELERATE_USE_CPU", ""))


def asked_precision_here() -> str | None:
    """What ACCELERATE_MIXED_PRECISION asks for, where an Accelerator is not told."""
    return environment().get("ACCELERATE_MIXED_PRECISION") or None


def asked_accumulation_steps() -> int | None:
    """What ACCELERATE_GRADIENT_ACCUMULATION_STEPS asks for: it overrules the argument, as there.

    Raises:
        SpecError: it is no number.
    """
    text = environment().get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    if not text:
        return None
    if not text.strip().isdecimal():
        raise SpecError(f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={text!r} is no number of steps.")
    return int(text)


def replica_here(*, cpu: bool = False, group: Mapping[str, Any] | None = None) -> Replica:
    """The replica that the calling code belongs to, joined to its group where it must be.

    A launch of this package decides. Else a torch.distributed group that is there decides. Else
    what torchrun has put into the environment does, and the process joins the others: then this is
    a collective. Else the process is alone.

    Args:
        cpu: compute on the CPU when joining.
        group: what `init_process_group` is told beyond that: backend, init_method, timeout.
    """
    current = current_replica()
    _allow_time(group)
    if current is not ground_replica():
        return current
    if current is SOLO or not _still_holds(current):
        settle(_found(cpu or asks_for_cpu(), dict(group or {})))
    device = environment().get("ACCELERATE_TORCH_DEVICE")
    return replace(ground_replica(), device=device) if device else ground_replica()


def leave_group() -> None:
    """Leave the group of this process, if it is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_own_group() -> None:
    """Leave the group, unless a launch of this package made it, which needs it to its end."""
    if current_replica() is ground_replica():
        leave_group()


def is_to_join() -> bool:
    """Whether this process was started as one of several, but has not joined the others yet."""
    alone = current_replica() is SOLO and not dist.is_initialized()
    return alone and _is_told_to_join()


def _is_told_to_join() -> bool:
    # A loader's worker has the variables of the rank that started it, and is none.
    said = set(_TORCHRUN) <= environment().keys() and not _in_a_kernel()
    return said and get_worker_info() is None


def _allow_time(group: Mapping[str, Any] | None) -> None:
    """Let the collectives of a group that is there already take as long as asked."""
    if group and group.get("timeout") is not None and dist.is_initialized():
        whole = distributed_c10d._get_default_group()  # noqa: SLF001  # there is no public getter
        distributed_c10d._set_pg_timeout(group["timeout"], whole)  # noqa: SLF001  # nor setter


def _still_holds(settled: Replica) -> bool:
    return dist.is_initialized() and dist.get_world_size() == settled.world_size


def _found(cpu: bool, group: dict[str, Any]) -> Replica:  # noqa: FBT001
    if not dist.is_initialized() and not _is_told_to_join():
        return SOLO
    local_rank = _number("LOCAL_RANK", _rank())
    device = "cpu" if cpu else _device_of(local_rank)
    if not dist.is_initialized():
        _join(device, group)
    if dist.get_backend() == "gloo":
        atexit.register(_let_gloo_finish)
    local_world_size = _number("LOCAL_WORLD_SIZE", dist.get_world_size())
    return Replica(
        rank=dist.get_rank(),
        local_rank=local_rank,
        world_size=dist.get_world_size(),
        local_world_size=local_world_size,
        node_rank=_number("GROUP_RANK", 0),
        num_nodes=max(1, dist.get_world_size() // local_world_size),
        device=device,
    )


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else _number("RANK", 0)


def _number(name: str, default: int) -> int:
    return int(environment().get(name, default))


def _device_of(local_rank: int) -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type not in KINDS or not KINDS[found.type].takes_several:
        return "cpu"
    return f"{found.type}:{local_rank % torch.accelerator.device_count()}"


def _join(device: str, group: dict[str, Any]) -> None:
    kind = KINDS[torch.device(device).type]
    if kind.name != "cpu":
        torch.accelerator.set_device_index(torch.device(device).index or 0)
    given = {name: value for name, value in group.items() if value is not None}
    dist.init_process_group(**({"backend": kind.backend} | given))
    if dist.get_backend() == "gloo":  # NCCL's end may wait for ranks that have failed
        atexit.register(leave_group)


def _let_gloo_finish() -> None:
    """Let gloo's threads give back the tensors of the last collective.

    They need the interpreter for it, and a thread that asks for it once it is being finalised is
    ended in a way that aborts the process: "terminate called without an active exception".
    """
    threading.Event().wait(_GLOO_SECONDS)


def _in_a_kernel() -> bool:
    """Whether this is a notebook's kernel, whose variables may be those of any earlier launcher."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")
