"""What there is on a host, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Gpu", "Machine", "Platform", "Torch", "Tpu"]

Platform: TypeAlias = Literal["linux", "darwin", "win32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU that a worker may use."""

    index: int
    """As the driver counts; a worker's "cuda:i" is the i-th of the machine's `gpus`."""
    name: str = "NVIDIA GPU"
    memory_bytes: int | None = None
    uuid: str = ""
    capability: tuple[int, int] | None = None
    """Compute capability, such as (7, 5) of a T4."""

    @property
    def bfloat16(self) -> bool | None:
        """Whether its arithmetic units know bfloat16; older ones emulate it, slowly."""
        return None if self.capability is None else self.capability >= (8, 0)

    @property
    def float8(self) -> bool | None:
        """Whether its arithmetic units know 8-bit floats."""
        return None if self.capability is None else self.capability >= (8, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpu:
    """The TPU chips of this host."""

    chips: int
    kind: str = "TPU"
    """Generation, such as "v5e"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The installed torch, as its own version file tells."""

    version: str = ""
    accelerators: frozenset[str] = frozenset({"cuda", "mps", "xpu"})
    """What it is built for beside the CPU; everything, where that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this host offers to a launch."""

    platform: Platform = "linux"
    place: tuple[str, ...] = ()
    """Where this kernel runs: of "kaggle", "colab", "sagemaker", "databricks", "slurm", "vscode",
    "jupyter" all that hold, or "terminal"."""
    cpus: int = 1
    """That this process may use: its affinity and its container's quota are respected."""
    memory_bytes: int | None = None
    available_memory_bytes: int | None = None
    shm_bytes: int | None = None
    """Free bytes of /dev/shm, where DataLoader workers put their batches; None without one."""
    gpus: tuple[Gpu, ...] = ()
    hidden_gpus: int = 0
    """GPUs that are there, but that CUDA_VISIBLE_DEVICES hides."""
    mps: bool = False
    xpus: int = 0
    tpu: Tpu | None = None
    torch: Torch | None = Torch()
    """None when it is not installed."""
    has_torch_xla: bool = False

    @property
    def has_torch(self) -> bool:
        """Whether torch is installed."""
        return self.torch is not None
