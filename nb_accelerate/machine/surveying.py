"""The survey: a look at each subject, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nb_accelerate.machine.gpus import intel_gpus, nvidia_gpus, visible
from nb_accelerate.machine.packages import installed_torch
from nb_accelerate.machine.processors import usable_cpus
from nb_accelerate.machine.ram import free_bytes, memory
from nb_accelerate.machine.roots import Roots
from nb_accelerate.machine.tpus import tpu
from nb_accelerate.machine.values import Machine
from nb_accelerate.machine.whereabouts import places

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nb_accelerate.machine.values import Platform

__all__ = ["survey"]


def survey(
    environ: Mapping[str, str], *, modules: Container[str] = (), roots: Roots | None = None
) -> Machine:
    """Look at this host.

    Args:
        environ: the environment that the workers will inherit.
        modules: names of the modules that the kernel has loaded (`sys.modules`).
        roots: where to look, for tests.
    """
    roots = roots or Roots()
    total, available = memory(roots)
    gpus = nvidia_gpus(roots)
    seen = visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    torch = installed_torch(roots)
    return Machine(
        platform=_platform(roots.platform),
        place=places(environ, modules),
        cpus=usable_cpus(roots),
        memory_bytes=total,
        available_memory_bytes=available,
        shm_bytes=free_bytes(roots.devfs / "shm"),
        gpus=seen,
        hidden_gpus=sum(gpu not in seen for gpu in gpus),
        mps=roots.platform == "darwin" and roots.processor() == "arm64",
        xpus=intel_gpus(roots) if torch and "xpu" in torch.accelerators else 0,
        tpu=tpu(roots, environ),
        torch=torch,
        has_torch_xla=roots.package("torch_xla") is not None,
    )


def _platform(name: str) -> Platform:
    """The three that start methods tell apart; other Unixes are as Linux."""
    return "darwin" if name == "darwin" else "win32" if name in ("win32", "cygwin") else "linux"
