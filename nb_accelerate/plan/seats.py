"""What a plan is made of: values with nothing left to decide."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Plan", "Seat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One worker's share of a plan: nothing left to decide."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int = 0
    num_nodes: int = 1
    device: str = "cpu"
    """A torch device, such as "cuda:1"."""
    backend: str = "gloo"
    """For torch.distributed, such as "gloo" or "cuda:nccl,cpu:gloo"."""
    mixed_precision: str = "no"
    gradient_accumulation_steps: int = 1
    num_threads: int = 1
    """Threads that one operation of this rank may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a launch will do."""

    seats: tuple[Seat, ...]
    start_method: str
    """A row of launch.methods: "template", "fork", "spawn" or "inline"."""
    settles: bool = False
    """Wait for the processes' end before returning: they hold device memory that the next needs."""
    banner: str = ""
    notes: tuple[str, ...] = ()
    """What the user should know before it starts, such as a small /dev/shm."""
