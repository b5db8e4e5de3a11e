"""Choices that upstream's `utils.dataclasses` names and that no room of ours needs."""

from __future__ import annotations

from enum import Enum, EnumMeta
from typing import Any

__all__ = [
    "BaseEnum",
    "ComputeEnvironment",
    "CustomDtype",
    "EnumWithContains",
    "FP8BackendType",
    "PrecisionType",
    "RNGType",
    "SageMakerDistributedType",
]


class EnumWithContains(EnumMeta):
    """Lets `in` ask for values: `"bf16" in PrecisionType`."""

    def __contains__(cls: type[Any], item: object) -> bool:
        return any(item is member or item == member.value for member in cls)


class BaseEnum(Enum, metaclass=EnumWithContains):
    """A choice whose `str` is its value."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> list[str]:
        """The values, in order."""
        return [str(member) for member in cls]


class PrecisionType(str, BaseEnum):
    """What is computed in."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"

    __str__ = BaseEnum.__str__


class RNGType(BaseEnum):
    """Which random generator is made the same on all ranks."""

    TORCH = "torch"
    CUDA = "cuda"
    MLU = "mlu"
    SDAA = "sdaa"
    MUSA = "musa"
    NPU = "npu"
    XLA = "xla"
    XPU = "xpu"
    HPU = "hpu"
    NEURON = "neuron"
    GENERATOR = "generator"


class CustomDtype(Enum):
    """Types of weights that torch has none for."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


class ComputeEnvironment(str, Enum):  # noqa: UP042  # its str is upstream's
    """Whose machines compute."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class SageMakerDistributedType(str, Enum):  # noqa: UP042  # its str is upstream's
    """How SageMaker's processes compute together."""

    NO = "NO"
    DATA_PARALLEL = "DATA_PARALLEL"
    MODEL_PARALLEL = "MODEL_PARALLEL"


class FP8BackendType(str, Enum):  # noqa: UP042  # its str is upstream's
    """Whose fp8."""

    NO = "NO"
    TE = "TE"
    MSAMP = "MSAMP"
    AO = "AO"
