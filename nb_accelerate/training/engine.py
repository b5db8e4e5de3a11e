"""Engine: what truly differs between runtimes, and nothing else.

CPU, CUDA, MPS and XPU are one engine (`torch_engine`): they differ in values, which are rows of
its table. A runtime that behaves otherwise (XLA) is another implementation of this protocol.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from nb_accelerate.replica import Replica

    from .communication import DistributedDataParallelKwargs
    from .nested import Anything

__all__ = ["DistributedType", "Engine", "ReduceOp", "engine_for"]

ReduceOp: TypeAlias = Literal["sum", "max"]


class DistributedType(str, Enum):  # noqa: UP042  # str() must give "DistributedType.NO", as upstream
    """How the processes of a run compute together; the names are Accelerate's."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_XPU = "MULTI_XPU"
    XLA = "XLA"
    # No engine is one of these, but code compares with them.
    FSDP = "FSDP"
    DEEPSPEED = "DEEPSPEED"
    MEGATRON_LM = "MEGATRON_LM"
    MULTI_HPU = "MULTI_HPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_NEURON = "MULTI_NEURON"
    MULTI_NPU = "MULTI_NPU"
    MULTI_SDAA = "MULTI_SDAA"


class Engine(Protocol):
    """One replica's runtime. Methods that talk to other ranks are collectives."""

    @property
    def device(self) -> torch.device:
        """Where this replica computes."""

    @property
    def rank(self) -> int:
        """This replica's place among all."""

    @property
    def world_size(self) -> int:
        """How many replicas compute together."""

    @property
    def distributed_type(self) -> DistributedType:
        """Accelerate's name for this arrangement."""

    @property
    def header_device(self) -> torch.device:
        """Where small integers are best when they cross between ranks."""

    def require_precision(self, name: str) -> None:
        """Raise `SpecError` when the device cannot train in it. May touch the device."""

    def grad_scaler(self, options: Mapping[str, Any]) -> torch.amp.GradScaler:
        """A new scaler for fp16 on this device; `options` by torch's names."""

    def adopt_model(
        self, model: nn.Module, asked: DistributedDataParallelKwargs | None = None
    ) -> nn.Module:
        """The model with its gradients averaged over the ranks, and equal weights to start from."""

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, `backward` leaves the gradients of an adopted model local to the rank."""

    def sync_next_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, `backward` averages all gradients, also of forwards made under `no_sync`."""

    def joined(self, models: Sequence[nn.Module], *, enable: bool) -> AbstractContextManager[None]:
        """Within it, a rank that is through with its batches answers for those that are not."""

    def step(self, optimizer: Optimizer, closure: Callable[[], float] | None) -> Anything:
        """One update of the weights."""

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensor of every rank, in the order of the ranks. Shapes must be equal."""

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> torch.Tensor:
        """A new tensor: the ranks' tensors combined element by element. Shapes must be equal."""

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Fill `tensor` in place with rank `source`'s. Shapes must be equal."""

    def all_gather_object(self, value: object) -> list[Any]:
        """The value of every rank, pickled on the way."""

    def barrier(self) -> None:
        """Return once every rank has come here."""

    def empty_cache(self) -> None:
        """Give unused device memory back."""


def engine_for(replica: Replica, *, cpu: bool = False) -> Engine:
    """The engine that `replica` computes with; `cpu` overrules its device.

    Raises:
        SpecError: the replica's device is not known, or its process group is missing.
    """
    # Imported here: an engine's module may import a runtime that only its own replicas have.
    from .torch_engine import TorchEngine, chosen_device

    return TorchEngine(replica, chosen_device(replica, cpu=cpu))
