"""Machine: what this host has. `survey` looks without importing torch or touching a device.

It reads files and asks NVML, which opens no CUDA context; it starts no process. What it cannot
find out is None, never a guess. Where it is (Colab, Kaggle, ...) is told for the sake of hints and
views; no count ever depends on it.

Reading order: values (what is found), surveying (how it comes together), roots (where it looks);
then the subjects: processors, ram, gpus, tpus, packages, whereabouts. cgroups and files serve them.
"""

from __future__ import annotations

from nb_accelerate.machine.gpus import intel_gpus, nvidia_gpus, visible
from nb_accelerate.machine.packages import installed_torch
from nb_accelerate.machine.processors import usable_cpus
from nb_accelerate.machine.ram import free_bytes, memory
from nb_accelerate.machine.roots import Roots
from nb_accelerate.machine.surveying import survey
from nb_accelerate.machine.tpus import tpu
from nb_accelerate.machine.values import Gpu, Machine, Platform, Torch, Tpu
from nb_accelerate.machine.whereabouts import places

__all__ = [
    "Gpu",
    "Machine",
    "Platform",
    "Roots",
    "Torch",
    "Tpu",
    "free_bytes",
    "installed_torch",
    "intel_gpus",
    "memory",
    "nvidia_gpus",
    "places",
    "survey",
    "tpu",
    "usable_cpus",
    "visible",
]
