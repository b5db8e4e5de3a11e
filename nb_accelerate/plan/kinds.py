"""Kinds of hardware: what differs between them, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nb_accelerate.machine import Machine

__all__ = ["CPU", "CUDA", "KINDS", "MPS", "TPU", "XPU", "Kind", "torch_knows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a launch needs to know of one kind of hardware."""

    name: str
    """As torch calls its devices and the user asks for it."""
    noun: str
    """What one of them is called: "GPU"."""
    devices: Callable[[Machine], int]
    """How many there are; each holds one worker, save the CPU, which holds any number."""
    device: str
    """A worker's torch device; "{}" is its local rank."""
    backend: str
    """For torch.distributed: the device's tensors, and the CPU's beside them."""
    precisions: tuple[str, ...]
    settles: bool = True
    single: bool = False
    """No machine has more than one, so "auto" puts several workers elsewhere."""
    ready: bool = True
    """This version can launch on it."""


CPU = Kind(
    name="cpu",
    noun="CPU process",
    devices=lambda _machine: 1,
    device="cpu",
    backend="gloo",
    precisions=("no", "bf16"),
    settles=False,
)
CUDA = Kind(
    name="cuda",
    noun="GPU",
    devices=lambda machine: len(machine.gpus),
    device="cuda:{}",
    backend="cuda:nccl,cpu:gloo",
    precisions=("no", "fp16", "bf16", "fp8"),
)
TPU = Kind(
    name="tpu",
    noun="TPU chip",
    devices=lambda machine: machine.tpu.chips if machine.tpu else 0,
    device="xla:{}",
    backend="xla",
    precisions=("no", "bf16"),
    ready=False,
)
XPU = Kind(
    name="xpu",
    noun="Intel GPU",
    devices=lambda machine: machine.xpus,
    device="xpu:{}",
    backend="xpu:xccl,cpu:gloo",
    precisions=("no", "fp16", "bf16"),
)
MPS = Kind(
    name="mps",
    noun="Apple GPU",
    devices=lambda machine: int(machine.mps),
    device="mps",
    backend="gloo",
    precisions=("no", "fp16", "bf16"),
    single=True,
)

KINDS: tuple[Kind, ...] = (CUDA, TPU, XPU, MPS, CPU)
"""The best first."""


def torch_knows(kind: Kind, machine: Machine) -> bool:
    """Whether the installed torch can compute on it."""
    return machine.torch is None or kind in (CPU, TPU) or kind.name in machine.torch.accelerators
