"""Compiling: torch.compile around what `prepare` gives back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import torch

from nb_accelerate.errors import SpecError

from .joining import environment, is_yes
from .models import is_compiled
from .plugins import KwargsHandler
from .regions import compile_regions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

__all__ = ["DynamoBackend", "TorchDynamoPlugin", "asked_compilation", "compiled"]

M = TypeVar("M", bound="nn.Module")

_PREFIX = "ACCELERATE_DYNAMO_"


class DynamoBackend(str, Enum):  # noqa: UP042  # str() must give "DynamoBackend.NO", as upstream
    """What torch.compile makes of a graph; the names are Accelerate's."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    IPEX = "IPEX"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """What `torch.compile` is told; None takes ACCELERATE_DYNAMO_*, else torch's default.

    Raises:
        SpecError: there is no such backend.
    """

    backend: DynamoBackend | str | None = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool | None = None

    def __post_init__(self) -> None:
        self._fill(environment())

    def to_kwargs(self) -> dict[str, Any]:
        """What was changed, as `torch.compile` wants it."""
        kwargs = super().to_kwargs()
        if "backend" in kwargs:
            kwargs["backend"] = self.backend_name
        return kwargs

    @property
    def backend_name(self) -> str:
        """The backend's name by which torch knows it; "no" for none."""
        return str(getattr(self.backend, "value", self.backend)).lower()

    @classmethod
    def _default(cls) -> Self:
        plain = cls.__new__(cls)
        for name in ("backend", "mode", "fullgraph", "dynamic", "options"):
            setattr(plain, name, None)
        plain.disable, plain.use_regional_compilation = False, None
        plain._fill({})  # noqa: SLF001  # this is its constructor
        return plain

    def _fill(self, said: Mapping[str, str]) -> None:
        dynamo = {k.removeprefix(_PREFIX): v for k, v in said.items() if k.startswith(_PREFIX)}
        self.backend = _parsed(self.backend or dynamo.get("BACKEND", "no"))
        self.mode = self.mode or dynamo.get("MODE", "default")
        if self.fullgraph is None:
            self.fullgraph = is_yes(dynamo.get("USE_FULLGRAPH", ""))
        if self.use_regional_compilation is None:
            self.use_regional_compilation = is_yes(dynamo.get("USE_REGIONAL_COMPILATION", ""))
        if self.dynamic is None and "USE_DYNAMIC" in dynamo:
            self.dynamic = is_yes(dynamo["USE_DYNAMIC"])


def asked_compilation(backend: object, plugin: object) -> TorchDynamoPlugin:
    """The plugin, from either of the constructor's two arguments.

    Raises:
        SpecError: both were given, or what was given is no plugin.
    """
    if backend is not None and plugin is not None:
        raise SpecError("dynamo_backend and dynamo_plugin were given: give one of them.")
    chosen = plugin if isinstance(plugin, TorchDynamoPlugin) else None
    if plugin is not None and chosen is None:
        raise SpecError(f"dynamo_plugin={plugin!r} is no TorchDynamoPlugin.")
    return chosen or TorchDynamoPlugin(backend=cast("Any", backend))


def compiled(model: M, plugin: TorchDynamoPlugin) -> M:
    """`model` compiled as the plugin asks; as it is when it asks for none, or it is compiled."""
    if plugin.backend is DynamoBackend.NO or is_compiled(model):
        return model
    kwargs = {k: v for k, v in plugin.to_kwargs().items() if k != "use_regional_compilation"}
    if plugin.use_regional_compilation:
        return compile_regions(model, **kwargs)
    compile_: Callable[..., Any] = torch.compile
    return cast("M", compile_(model, **kwargs))


def _parsed(backend: object) -> DynamoBackend:
    name = str(getattr(backend, "value", backend)).upper()
    if name not in DynamoBackend.__members__:
        known = ", ".join(repr(one.value.lower()) for one in DynamoBackend)
        raise SpecError(f"dynamo_backend={backend!r} is none of {known}.")
    return DynamoBackend[name]
