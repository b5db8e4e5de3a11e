"""Machine: what this host has. `survey` looks without importing torch or touching a device.

It reads files and asks NVML, which opens no CUDA context; it starts no process. What it cannot
find out is None, never a guess. Where it is (Colab, Kaggle, ...) is told for the sake of hints and
views; no count ever depends on it.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from platform import machine as processor_name
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping
    from types import ModuleType

__all__ = ["Gpu", "Machine", "Roots", "Torch", "Tpu", "survey"]

Platform: TypeAlias = Literal["linux", "darwin", "win32"]


# ---------------------------------------------------------------- what there is
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


# ---------------------------------------------------------------- where to look
def _affinity() -> int:
    ask = getattr(os, "sched_getaffinity", None)  # macOS and Windows have none
    return len(ask(0)) if ask else os.cpu_count() or 1


def _folder_of(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a loaded module without a spec, such as a stub of the user's
        return None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None


def _pynvml() -> ModuleType | None:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the survey looks; a test points it at a folder of its own."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devfs: Path = Path("/dev")
    platform: str = sys.platform
    processor: Callable[[], str] = processor_name
    affinity: Callable[[], int] = _affinity
    """How many CPUs this process may run on."""
    package: Callable[[str], Path | None] = _folder_of
    """The folder of an installed package, without importing it."""
    nvml: Callable[[], ModuleType | None] = _pynvml


# ---------------------------------------------------------------- the survey
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


# ---------------------------------------------------------------- where
@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    variables: tuple[str, ...] = ()
    """Any variable that starts so tells."""
    modules: tuple[str, ...] = ()
    unless: str = ""


_PLACES = (
    _Place("kaggle", ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_DATA_PROXY_URL")),
    # Kaggle's image is made from Colab's and has its module too.
    _Place("colab", ("COLAB_",), ("google.colab",), unless="kaggle"),
    _Place("sagemaker", ("SAGEMAKER_", "SM_HOSTS", "SM_CURRENT_HOST")),
    _Place("databricks", ("DATABRICKS_RUNTIME_VERSION",)),
    _Place("slurm", ("SLURM_JOB_ID",)),
    _Place("vscode", ("VSCODE_",)),
    _Place("jupyter", (), ("ipykernel.kernelapp",)),
)


def places(environ: Iterable[str], modules: Container[str] = ()) -> tuple[str, ...]:
    """The names of `_PLACES` that hold, or ("terminal",)."""
    names = tuple(environ)
    found: list[str] = []
    for place in _PLACES:
        told = any(name.startswith(place.variables) for name in names)
        if (told or any(m in modules for m in place.modules)) and place.unless not in found:
            found.append(place.name)
    return tuple(found) or ("terminal",)


# ---------------------------------------------------------------- processor and memory
def usable_cpus(roots: Roots) -> int:
    """CPUs that this process may keep busy: at most its affinity and its cgroups' quotas."""
    quotas = [math.ceil(quota) for quota in _cpu_quotas(roots)]
    return max(1, min([roots.affinity(), *quotas]))


def _cpu_quotas(roots: Roots) -> Iterator[float]:
    """CPU seconds per second that each cgroup from this process's own to the root allows."""
    for folder in _cgroups(roots, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        quota = quota or _read(folder / "cpu.cfs_quota_us")
        period = period or _read(folder / "cpu.cfs_period_us")
        # "max" and -1 mean no quota.
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            yield int(quota) / int(period)


def memory(roots: Roots) -> tuple[int | None, int | None]:
    """(all, available) bytes of memory that this process may count on."""
    total, available = _system_memory(roots)
    for folder in _cgroups(roots, "memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        # cgroup v1 says "no limit" by an absurdly high one.
        if limit is None or total is None or limit >= total:
            continue
        total = limit
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
        free = max(0, limit - used + _reclaimable(folder))
        available = free if available is None else min(available, free)
    return total, available


def _reclaimable(folder: Path) -> int:
    """Bytes of the page cache that a cgroup counts as used and gives up when asked."""
    stat: dict[str, str] = dict(
        re.findall(r"^(\w+) (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
    )
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def _system_memory(roots: Roots) -> tuple[int | None, int | None]:
    if roots.platform == "linux":
        text = _read(roots.procfs / "meminfo")
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
        kilobytes = (found.get("MemTotal"), found.get("MemAvailable"))
        total, available = (None if kb is None else int(kb) * 1024 for kb in kilobytes)
        return total, available
    import psutil  # 25 ms of import, which Linux need not pay

    now = psutil.virtual_memory()
    return now.total, now.available


def free_bytes(folder: Path) -> int | None:
    """Free bytes of the file system that `folder` lies on; None without such a folder."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _cgroups(roots: Roots, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroups under `controller`, v2 and v1, innermost first.

    A container shows its own cgroup as the root of /sys/fs/cgroup while /proc may name the path
    that the host knows it by: folders that do not exist are left out.
    """
    base = roots.sysfs / "fs" / "cgroup"
    own = _read(roots.procfs / "self" / "cgroup")
    for controllers, path in re.findall(r"^\d+:([^:\n]*):(.*)$", own, re.MULTILINE):
        if controllers and controller not in controllers.split(","):
            continue
        for mount in dict.fromkeys((controllers, controller)) if controllers else ("", "unified"):
            leaf = base / mount / path.lstrip("/")
            around = [p for p in leaf.parents if p.is_relative_to(base / mount)]
            yield from (p for p in (leaf, *around) if p.is_dir())


# ---------------------------------------------------------------- accelerators
def nvidia_gpus(roots: Roots) -> tuple[Gpu, ...]:
    """All there are, whatever CUDA_VISIBLE_DEVICES says: by NVML, else by the driver's files."""
    driver = roots.procfs / "driver" / "nvidia"
    # The Windows subsystem for Linux has the driver behind /dev/dxg.
    signs = (driver / "version", roots.devfs / "nvidiactl", roots.devfs / "dxg")
    if roots.platform == "darwin" or (
        roots.platform == "linux" and not any(sign.exists() for sign in signs)
    ):
        return ()
    nvml = roots.nvml()
    told = _gpus_of_nvml(nvml) if nvml else None
    return _gpus_of_files(driver / "gpus") if told is None else told


def _gpus_of_nvml(nvml: ModuleType) -> tuple[Gpu, ...] | None:
    """None when NVML does not answer, as with a driver that is not loaded."""
    try:
        with _opened(nvml):
            return tuple(_gpu_of_nvml(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return None


@contextmanager
def _opened(nvml: ModuleType) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _gpu_of_nvml(nvml: ModuleType, index: int) -> Gpu:
    device = nvml.nvmlDeviceGetHandleByIndex(index)

    def told(question: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - NVML is untyped
        """NVML's answer; None where this device has none, as old ones have."""
        try:
            return question(device)
        except nvml.NVMLError:
            return None

    amount = told(nvml.nvmlDeviceGetMemoryInfo)
    return Gpu(
        index=index,
        name=told(nvml.nvmlDeviceGetName) or "NVIDIA GPU",
        memory_bytes=amount and int(amount.total),
        uuid=told(nvml.nvmlDeviceGetUUID) or "",
        capability=told(nvml.nvmlDeviceGetCudaComputeCapability),
    )


def _gpus_of_files(folder: Path) -> tuple[Gpu, ...]:
    """From /proc/driver/nvidia/gpus/BUS/information, in the order of the bus."""
    texts = [_read(gpu / "information") for gpu in sorted(folder.glob("*"))]
    return tuple(
        Gpu(
            index=index,
            name=_entry(text, "Model") or "NVIDIA GPU",
            uuid=_entry(text, "GPU UUID"),
        )
        for index, text in enumerate(texts)
    )


def _entry(text: str, key: str) -> str:
    found = re.search(rf"^{key}:[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return found[1] if found else ""


def visible(gpus: tuple[Gpu, ...], listed: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order: "1,0", "GPU-8f2…", "" or "-1".

    As the driver reads it: the first entry that names no GPU ends the list, and a GPU that is
    named twice makes it empty.
    """
    if listed is None:
        return gpus
    seen: list[Gpu] = []
    for entry in listed.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        if gpu in seen:
            return ()
        seen.append(gpu)
    return tuple(seen)


def _named(gpus: tuple[Gpu, ...], entry: str) -> Gpu | None:
    if entry.startswith("MIG-"):
        # A slice of a GPU: a device of its own to CUDA, which its parent's memory does not tell of.
        return Gpu(index=len(gpus), name="NVIDIA MIG slice", uuid=entry) if gpus else None
    if entry.startswith("GPU-"):
        alike = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return alike[0] if len(alike) == 1 else None
    number = re.match(r"\+?(\d+)", entry)
    return gpus[int(number[1])] if number and int(number[1]) < len(gpus) else None


def intel_gpus(roots: Roots) -> int:
    """Intel's display controllers, which is what an XPU build of torch computes on."""
    devices = (roots.sysfs / "bus" / "pci" / "devices").glob("*")
    return sum(
        _read(device / "vendor") == "0x8086" and _read(device / "class").startswith("0x03")
        for device in devices
    )


_TPU_KINDS = {
    "0x0027": "v2/v3",
    "0x0056": "TPU",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "v7x",
}
"""Google's PCI device numbers."""


def tpu(roots: Roots, environ: Mapping[str, str]) -> Tpu | None:
    """The TPU chips by their PCI numbers; else by their device files.

    PJRT_DEVICE and TPU_NAME stand on machines without a TPU and are missing on machines with one,
    so they only decide what the device files of a virtual machine's /dev/vfio are.
    """
    kinds = _google_chips(roots)
    if kinds:
        return Tpu(chips=len(kinds), kind=kinds[0])
    chips = _count(roots.devfs, r"accel\d+")
    if not chips and environ.get("PJRT_DEVICE") == "TPU" and roots.package("libtpu"):
        chips = _count(roots.devfs / "vfio", r"\d+")
    kind = environ.get("TPU_ACCELERATOR_TYPE") or environ.get("ACCELERATOR_TYPE") or "TPU"
    return Tpu(chips=chips, kind=kind) if chips else None


def _google_chips(roots: Roots) -> list[str]:
    devices = sorted((roots.sysfs / "bus" / "pci" / "devices").glob("*"))
    numbers = (_read(d / "device") for d in devices if _read(d / "vendor") == "0x1ae0")
    return [_TPU_KINDS[number] for number in numbers if number in _TPU_KINDS]


def _count(folder: Path, pattern: str) -> int:
    return sum(bool(re.fullmatch(pattern, entry.name)) for entry in folder.glob("*"))


# ---------------------------------------------------------------- packages
def installed_torch(roots: Roots) -> Torch | None:
    """The installed torch and what it is built for, from its version file, without importing it."""
    folder = roots.package("torch")
    if folder is None:
        return None
    text = _read(folder / "version.py")
    found = dict(re.findall(r"^(\w+)\s*(?::[^=\n]*)?=\s*(.+?)\s*$", text, re.MULTILINE))
    version = found.get("__version__", "").strip("'\"")
    if "cuda" not in found:
        return Torch(version=version)
    # ROCm builds call their devices "cuda" too; the Mac's wheels have MPS without saying so.
    named = {"cuda": "cuda", "hip": "cuda", "xpu": "xpu"}
    built = {name for key, name in named.items() if found.get(key, "None") != "None"}
    mac = {"mps"} if roots.platform == "darwin" else set()
    return Torch(version=version, accelerators=frozenset(built | mac))


# ---------------------------------------------------------------- files
def _read(file: Path) -> str:
    """The text without its last line break; "" when it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(*files: Path) -> int | None:
    """The number in the first of `files` that holds one."""
    return next((int(text) for text in map(_read, files) if text.isdecimal()), None)
