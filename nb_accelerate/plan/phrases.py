"""Phrases that the banner, the refusals and the notes share."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nb_accelerate.machine import Gpu, Machine

__all__ = ["ability", "counted", "gpu_names", "hidden_count", "size", "tpu_chips"]


def counted(number: int, noun: str) -> str:
    """Such as "1 GPU" or "2 CPU processes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def gpu_names(gpus: tuple[Gpu, ...]) -> str:
    """Such as "NVIDIA T4", or "2 × NVIDIA T4, NVIDIA L4" of a mixture."""
    counts = Counter(gpu.name for gpu in gpus)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())


def ability(gpu: Gpu) -> str:
    """Such as "GPU 0 (NVIDIA T4) has 7.5"."""
    major, minor = gpu.capability or (0, 0)
    return f"GPU {gpu.index} ({gpu.name}) has {major}.{minor}"


def tpu_chips(machine: Machine) -> str:
    """Such as "8 TPU chips (v5e)"; "" without any."""
    return f"{counted(machine.tpu.chips, 'TPU chip')} ({machine.tpu.kind})" if machine.tpu else ""


def hidden_count(machine: Machine) -> str:
    """Such as "CUDA_VISIBLE_DEVICES hides 2 GPUs"; "" when it hides none."""
    hidden = machine.hidden_gpus
    return f"CUDA_VISIBLE_DEVICES hides {counted(hidden, 'GPU')}" if hidden else ""


def size(number: int) -> str:
    """Bytes, in the unit that suits them."""
    return f"{number / 2**30:.1f} GB" if number >= 2**30 else f"{number / 2**20:.0f} MB"
