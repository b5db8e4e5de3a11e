"""Whether a package is installed, or a kind of device is there: upstream's `is_*_available`.

The answers are about the machine. That a package is there does not mean that this version uses it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Any, TypeVar

from .environment import parse_flag_from_env, patch_environment
from .versions import compare_versions, is_torch_version

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

USE_TORCH_XLA = parse_flag_from_env("USE_TORCH_XLA", default=True)
"""Setting this variable to no hides torch_xla."""


def _installed(package: str, *distributions: str) -> bool:
    """Whether the package is found, and belongs to one of these distributions.

    A folder of the same name in the working directory is found too, but is nobody's distribution.
    """
    if importlib.util.find_spec(package) is None:
        return False
    return any(_has_metadata(name) for name in distributions or (package,))


def _has_metadata(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _at_least(package: str, version: str) -> bool:
    return _installed(package) and compare_versions(package, ">=", version)


def _probe(package: str, *distributions: str) -> Callable[[], bool]:
    def is_available() -> bool:
        return _installed(package, *distributions)

    is_available.__doc__ = f"Whether the package {package} is installed."
    return is_available


# ---------------------------------------------------------------- packages
is_amdsmi_available = _probe("amdsmi")
is_boto3_available = _probe("boto3")
is_clearml_available = _probe("clearml")
is_comet_ml_available = _probe("comet_ml")
is_datasets_available = _probe("datasets")
is_deepspeed_available = _probe("deepspeed")
is_dvclive_available = _probe("dvclive")
is_import_timer_available = _probe("import_timer")
is_lomo_available = _probe("lomo_optim")
is_matplotlib_available = _probe("matplotlib")
is_mlflow_available = _probe("mlflow", "mlflow", "mlflow-skinny")
is_msamp_available = _probe("msamp", "ms-amp")
is_pandas_available = _probe("pandas")
is_peft_available = _probe("peft")
is_pynvml_available = _probe("pynvml", "pynvml", "nvidia-ml-py")
is_pytest_available = _probe("pytest")
is_sagemaker_available = _probe("sagemaker")
is_schedulefree_available = _probe("schedulefree")
is_swanlab_available = _probe("swanlab")
is_timm_available = _probe("timm")
is_torchdata_available = _probe("torchdata")
is_torchvision_available = _probe("torchvision")
is_tqdm_available = _probe("tqdm")
is_trackio_available = _probe("trackio")
is_transformers_available = _probe("transformers")
is_wandb_available = _probe("wandb")


def is_aim_available() -> bool:
    """Whether aim is installed, in a version before 4, which is another program."""
    return _installed("aim") and compare_versions("aim", "<", "4.0.0")


def is_bnb_available(min_version: str | None = None) -> bool:
    """Whether bitsandbytes is installed, in that version at least."""
    if min_version is None:
        return _installed("bitsandbytes")
    return _at_least("bitsandbytes", min_version)


def is_4bit_bnb_available() -> bool:
    """Whether bitsandbytes knows 4-bit weights."""
    return _at_least("bitsandbytes", "0.39.0")


def is_8bit_bnb_available() -> bool:
    """Whether bitsandbytes knows 8-bit weights."""
    return _at_least("bitsandbytes", "0.37.2")


def is_bitsandbytes_multi_backend_available() -> bool:
    """Whether bitsandbytes computes on other devices than CUDA's."""
    if not is_bnb_available():
        return False
    features = getattr(importlib.import_module("bitsandbytes"), "features", ())
    return "multi_backend" in features


def is_megatron_lm_available() -> bool:
    """Whether Megatron is installed and ACCELERATE_USE_MEGATRON_LM asks for it."""
    asked = parse_flag_from_env("ACCELERATE_USE_MEGATRON_LM")
    return asked and _installed("megatron", "megatron-core")


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    """Whether numpy is installed, in that version at least."""
    return _at_least("numpy", min_version)


def is_rich_available() -> bool:
    """Whether rich is installed and ACCELERATE_ENABLE_RICH asks for its tracebacks."""
    return _installed("rich") and parse_flag_from_env("ACCELERATE_ENABLE_RICH")


def is_tensorboard_available() -> bool:
    """Whether tensorboard, or tensorboardX, is installed."""
    return _installed("tensorboard") or _installed("tensorboardX")


def is_torchao_available() -> bool:
    """Whether torchao is installed, in a version that trains in fp8."""
    return _at_least("torchao", "0.6.1")


def is_torchdata_stateful_dataloader_available() -> bool:
    """Whether torchdata has a StatefulDataLoader."""
    return _at_least("torchdata", "0.8.0")


def is_transformer_engine_available() -> bool:
    """Whether the Transformer Engine of this machine's device is installed."""
    if is_hpu_available():
        return _installed("intel_transformer_engine", "intel-transformer-engine")
    return _installed("transformer_engine", "transformer-engine")


def is_transformer_engine_mxfp8_available() -> bool:
    """Whether Transformer Engine is installed and the device knows MXFP8."""
    if not _installed("transformer_engine", "transformer-engine"):
        return False
    fp8 = importlib.import_module("transformer_engine.pytorch.fp8")
    return bool(fp8.check_mxfp8_support()[0])


def is_triton_available() -> bool:
    """Whether the triton of this machine's device is installed."""
    return _installed("triton", "triton-xpu" if is_xpu_available() else "triton")


# ---------------------------------------------------------------- torch
def is_torch_distributed_available() -> bool:
    """Whether this torch was built with torch.distributed."""
    import torch.distributed

    return torch.distributed.is_available()


def is_pippy_available() -> bool:
    """Whether torch has pipelines."""
    return is_torch_version(">=", "2.4.0")


def is_weights_only_available() -> bool:
    """Whether torch.load knows which classes are harmless."""
    return is_torch_version(">=", "2.4.0")


def is_xccl_available() -> bool:
    """Whether this torch was built with Intel's collectives."""
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_xccl_available()


# ---------------------------------------------------------------- devices
def is_cuda_available() -> bool:
    """Whether CUDA is there; the look leaves it uninitialised, so that a fork may follow."""
    import torch

    with patch_environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        return torch.cuda.is_available()


def is_rocm_available() -> bool:
    """Whether CUDA here is AMD's."""
    import torch

    return torch.version.hip is not None and torch.cuda.is_available()


def is_mps_available(min_version: str = "1.12") -> bool:
    """Whether Apple's GPU is there, and torch is of that version at least."""
    import torch

    return is_torch_version(">=", min_version) and torch.backends.mps.is_available()


@functools.cache
def is_xpu_available(check_device: bool = False) -> bool:  # noqa: FBT001, FBT002  # upstream's
    """Whether Intel's GPU is there; `check_device` changes nothing: the look is always real."""
    del check_device
    return _torch_has("xpu")


@functools.cache
def is_hpu_available(init_hccl: bool = False) -> bool:  # noqa: FBT001, FBT002  # upstream's
    """Whether Habana's Gaudi is there, its collectives loaded if that is asked."""
    if not (_found("habana_frameworks") and _found("habana_frameworks.torch")):
        return False
    importlib.import_module("habana_frameworks.torch")
    if init_hccl:
        importlib.import_module("habana_frameworks.torch.distributed.hccl")
    return _torch_has("hpu")


def is_habana_gaudi1() -> bool:
    """Whether the Gaudi that is there is of the first generation."""
    if not is_hpu_available():
        return False
    kinds = importlib.import_module("habana_frameworks.torch.utils.experimental")
    return bool(kinds._get_device_type() == kinds.synDeviceType.synDeviceGaudi)  # noqa: SLF001


def _device_probe(device: str, package: str) -> Callable[..., bool]:
    """A probe of a device that torch knows when a package of its maker's is imported."""

    @functools.cache
    def is_available(check_device: bool = False) -> bool:  # noqa: FBT001, FBT002  # upstream's
        del check_device  # the look is always a real one
        if not _found(package):
            return False
        try:
            importlib.import_module(package)
        except (ImportError, OSError, RuntimeError):  # installed, but its driver is not
            return False
        return _torch_has(device)

    is_available.__doc__ = f"Whether {package} is installed and one of its devices is there."
    return is_available


is_mlu_available = _device_probe("mlu", "torch_mlu")
is_musa_available = _device_probe("musa", "torch_musa")
is_neuron_available = _device_probe("neuron", "torch_neuronx")
is_npu_available = _device_probe("npu", "torch_npu")
is_sdaa_available = _device_probe("sdaa", "torch_sdaa")


@functools.cache
def is_torch_xla_available(
    check_is_tpu: bool = False,  # noqa: FBT001, FBT002  # upstream's
    check_is_gpu: bool = False,  # noqa: FBT001, FBT002  # upstream's
) -> bool:
    """Whether torch_xla is installed and not hidden, and its device is of that kind."""
    if check_is_tpu and check_is_gpu:
        raise AssertionError("check_is_tpu and check_is_gpu were both asked for; ask for one.")
    if not USE_TORCH_XLA or not _found("torch_xla"):
        return False
    if not (check_is_tpu or check_is_gpu):
        return True
    kind = importlib.import_module("torch_xla.runtime").device_type()
    return kind == "TPU" if check_is_tpu else kind in ("GPU", "CUDA")


# ---------------------------------------------------------------- number formats
def is_bf16_available(ignore_tpu: bool = False) -> bool:  # noqa: FBT001, FBT002  # upstream's
    """Whether the device computes in bfloat16."""
    import torch

    if is_torch_xla_available(check_is_tpu=True):
        return not ignore_tpu
    if is_mps_available():
        return torch.backends.mps.is_macos_or_newer(14, 0)
    for device, is_there in (
        ("cuda", is_cuda_available), ("mlu", is_mlu_available), ("xpu", is_xpu_available)
    ):  # fmt: skip
        if is_there():
            return bool(getattr(torch, device).is_bf16_supported())
    return True


def is_fp16_available() -> bool:
    """Whether a device that trains in float16 is there; upstream says so of the CPU too."""
    import torch

    if is_habana_gaudi1():
        return False
    return torch.accelerator.is_available() or is_torch_xla_available()


def is_fp8_available() -> bool:
    """Whether a package that trains in fp8 is installed."""
    return is_msamp_available() or is_transformer_engine_available() or is_torchao_available()


# ---------------------------------------------------------------- decorators
def torchao_required(func: F) -> F:
    """Let calls of a function fail where torchao is not installed."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # whatever it takes and gives
        if not is_torchao_available():
            raise ImportError(f"{func.__name__} needs torchao 0.6.1 or newer: pip install torchao.")
        return func(*args, **kwargs)

    return call  # type: ignore[return-value]


def _found(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _torch_has(device: str) -> bool:
    import torch

    return hasattr(torch, device) and bool(getattr(torch, device).is_available())


__all__ = [
    "USE_TORCH_XLA",
    "torchao_required",
    *(name for name in dir() if name.startswith("is_") and name != "is_torch_version"),
]
