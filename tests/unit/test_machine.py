"""The survey, on hosts made of real files in a folder of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_accelerate.machine import (
    Gpu,
    Machine,
    Roots,
    Torch,
    Tpu,
    free_bytes,
    installed_torch,
    intel_gpus,
    memory,
    nvidia_gpus,
    places,
    survey,
    tpu,
    usable_cpus,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Callable

unhurried = settings(deadline=None)  # a busy machine is no failure

GB = 2**30
T4 = Gpu(index=0, name="Tesla T4", uuid="GPU-aaaa1111")
L4 = Gpu(index=1, name="NVIDIA L4", uuid="GPU-aaaa2222")
H100 = Gpu(index=2, name="NVIDIA H100", uuid="GPU-bbbb3333")
THREE = (T4, L4, H100)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A bare Linux host with 8 CPUs and no package, driver or device."""
    for name in ("proc", "sys", "dev"):
        (tmp_path / name).mkdir()
    return Roots(
        procfs=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        devfs=tmp_path / "dev",
        platform="linux",
        processor=lambda: "x86_64",
        affinity=lambda: 8,
        package=lambda _name: None,
        nvml=lambda: None,
    )


# ---------------------------------------------------------------- this very host
def test_the_survey_of_this_host_finds_cpus_and_memory_without_importing_torch():
    code = (
        "import sys; from nb_accelerate.machine import survey;"
        "found = survey({}); loaded = {'torch', 'psutil', 'torch_xla'} & set(sys.modules);"
        "assert found.cpus >= 1 and found.memory_bytes > 0, found;"
        "assert sys.platform != 'linux' or not loaded, loaded"
    )
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_available_memory_never_exceeds_all_of_it():
    found = survey({})
    assert found.memory_bytes is not None
    assert found.available_memory_bytes is not None
    assert 0 < found.available_memory_bytes <= found.memory_bytes


def test_a_bare_host_has_its_cpus_and_nothing_else(roots):
    assert survey({}, roots=roots) == Machine(cpus=8, place=("terminal",), torch=None)


# ---------------------------------------------------------------- CPUs
def test_a_cgroup_v2_quota_bounds_the_cpus(roots):
    write(roots.procfs, {"self/cgroup": "0::/\n"})
    write(roots.sysfs, {"fs/cgroup/cpu.max": "250000 100000\n"})
    assert usable_cpus(roots) == 3


def test_a_quota_of_a_cgroup_further_up_holds_too(roots):
    write(roots.procfs, {"self/cgroup": "0::/kubepods/pod7/main\n"})
    write(
        roots.sysfs,
        {
            "fs/cgroup/kubepods/pod7/cpu.max": "200000 100000\n",
            "fs/cgroup/kubepods/pod7/main/cpu.max": "max 100000\n",
        },
    )
    assert usable_cpus(roots) == 2


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_a_cgroup_v1_quota_bounds_the_cpus_of_a_container_that_does_not_know_its_path(roots, mount):
    write(roots.procfs, {"self/cgroup": "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n"})
    folder = f"fs/cgroup/{mount}"
    write(
        roots.sysfs,
        {f"{folder}/cpu.cfs_quota_us": "400000\n", f"{folder}/cpu.cfs_period_us": "100000\n"},
    )
    assert usable_cpus(roots) == 4


def test_a_quota_of_less_than_one_cpu_is_one(roots):
    write(roots.procfs, {"self/cgroup": "0::/\n"})
    write(roots.sysfs, {"fs/cgroup/cpu.max": "20000 100000\n"})
    assert usable_cpus(roots) == 1


@pytest.mark.parametrize("quota", ["max 100000", "-1", "", "900000 100000", "nonsense"])
def test_without_a_lower_quota_the_affinity_counts(roots, quota):
    write(roots.procfs, {"self/cgroup": "0::/\n"})
    write(roots.sysfs, {"fs/cgroup/cpu.max": quota})
    assert usable_cpus(roots) == 8


# ---------------------------------------------------------------- memory
def test_memory_is_what_the_system_says(roots):
    write(roots.procfs, {"meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n"})
    assert memory(roots) == (2048 * 1024, 1024 * 1024)


def test_memory_that_cannot_be_read_is_none(roots):
    assert memory(roots) == (None, None)


@pytest.mark.parametrize(
    ("cgroup", "folder", "limit", "usage", "cache"),
    [
        ("0::/box\n", "box", "memory.max", "memory.current", "inactive_file"),
        (
            "3:memory:/box\n",
            "memory/box",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_a_container_has_its_limit_less_what_it_uses(roots, cgroup, folder, limit, usage, cache):
    base = f"fs/cgroup/{folder}"
    write(
        roots.procfs,
        {"self/cgroup": cgroup, "meminfo": "MemTotal: 99999999 kB\nMemAvailable: 88888888 kB\n"},
    )
    write(
        roots.sysfs,
        {
            f"{base}/{limit}": f"{4 * GB}\n",
            f"{base}/{usage}": f"{3 * GB}\n",
            f"{base}/memory.stat": f"anon 5\n{cache} {GB}\n",
        },
    )
    assert memory(roots) == (4 * GB, 2 * GB)


def test_a_limit_beyond_the_system_s_memory_is_none(roots):
    write(
        roots.procfs,
        {"self/cgroup": "3:memory:/\n", "meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"},
    )
    write(roots.sysfs, {"fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert memory(roots) == (2048 * 1024, 1024 * 1024)


def test_shared_memory_is_what_its_file_system_has_free(tmp_path):
    status = os.statvfs(tmp_path)
    found = free_bytes(tmp_path)
    assert found is not None
    assert 0 < found <= status.f_blocks * status.f_frsize


def test_a_host_without_shared_memory_says_none(tmp_path):
    assert free_bytes(tmp_path / "shm") is None


# ---------------------------------------------------------------- GPUs
class NvmlError(Exception):
    """As pynvml's."""


def nvml_of(*gpus: Gpu, broken: frozenset[str] = frozenset()) -> SimpleNamespace:
    """The seven calls of pynvml that the survey makes; those in `broken` fail."""
    opened: list[str] = []

    def told(name: str, answer: Callable[[Gpu], object]) -> Callable[[Gpu], object]:
        def call(gpu: Gpu) -> object:
            assert opened == ["open"]
            if name in broken:
                raise NvmlError(name)
            return answer(gpu)

        return call

    def open_() -> None:
        if "init" in broken:
            raise NvmlError("driver not loaded")
        opened.append("open")

    return SimpleNamespace(
        NVMLError=NvmlError,
        opened=opened,
        nvmlInit=open_,
        nvmlShutdown=opened.pop,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: gpus[index],
        nvmlDeviceGetName=told("name", lambda gpu: gpu.name),
        nvmlDeviceGetUUID=told("uuid", lambda gpu: gpu.uuid),
        nvmlDeviceGetMemoryInfo=told("memory", lambda gpu: SimpleNamespace(total=gpu.memory_bytes)),
        nvmlDeviceGetCudaComputeCapability=told("capability", lambda gpu: gpu.capability),
    )


def with_driver(roots: Roots, nvml: object) -> Roots:
    write(roots.procfs, {"driver/nvidia/version": "NVRM version: 560\n"})
    return replace(roots, nvml=lambda: nvml)


def test_nvml_tells_all_of_a_gpu_and_is_closed_again(roots):
    gpu = Gpu(index=0, name="Tesla T4", uuid="GPU-1", memory_bytes=16 * GB, capability=(7, 5))
    nvml = nvml_of(gpu)
    assert nvidia_gpus(with_driver(roots, nvml)) == (gpu,)
    assert nvml.opened == []


def test_what_nvml_does_not_know_of_an_old_gpu_stays_open(roots):
    nvml = nvml_of(
        replace(T4, memory_bytes=1),
        broken=frozenset({"name", "uuid", "memory", "capability"}),
    )
    assert nvidia_gpus(with_driver(roots, nvml)) == (Gpu(index=0),)
    assert nvml.opened == []


INFORMATION = """Model: \t\t Tesla T4
IRQ:   \t\t 33
GPU UUID: \t GPU-9f
Device Minor: \t 0
"""


@pytest.mark.parametrize("nvml", [None, nvml_of(broken=frozenset({"init"}))])
def test_without_nvml_the_driver_s_files_tell_name_and_uuid(roots, nvml):
    host = with_driver(roots, nvml)
    write(
        roots.procfs,
        {
            "driver/nvidia/gpus/0000:00:05.0/information": INFORMATION.replace("9f", "a0"),
            "driver/nvidia/gpus/0000:00:04.0/information": INFORMATION,
        },
    )
    assert nvidia_gpus(host) == (
        Gpu(index=0, name="Tesla T4", uuid="GPU-9f"),
        Gpu(index=1, name="Tesla T4", uuid="GPU-a0"),
    )


def test_nvml_is_not_even_loaded_where_no_driver_is(roots):
    def must_not_load() -> ModuleType:
        raise AssertionError("pynvml was loaded")

    assert nvidia_gpus(replace(roots, nvml=must_not_load)) == ()


@pytest.mark.parametrize("sign", ["dev/nvidiactl", "dev/dxg"])
def test_a_device_file_of_the_driver_is_enough_to_ask_nvml(roots, sign):
    write(roots.devfs.parent, {sign: ""})
    assert nvidia_gpus(replace(roots, nvml=lambda: nvml_of(replace(T4, memory_bytes=1)))) != ()


@pytest.mark.parametrize(
    ("capability", "bfloat16", "float8"),
    [
        ((7, 5), False, False),
        ((8, 0), True, False),
        ((8, 9), True, True),
        ((9, 0), True, True),
        ((12, 0), True, True),
        (None, None, None),
    ],
)
def test_number_formats_follow_from_the_compute_capability(capability, bfloat16, float8):
    gpu = Gpu(index=0, capability=capability)
    assert (gpu.bfloat16, gpu.float8) == (bfloat16, float8)


# ---------------------------------------------------------------- CUDA_VISIBLE_DEVICES
@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, THREE),
        ("", ()),
        ("-1", ()),
        ("0", (T4,)),
        ("2,0", (H100, T4)),
        (" 1 , 2 ", (L4, H100)),
        ("0,-1,1", (T4,)),
        ("0,7,1", (T4,)),
        ("NoDevFiles", ()),
        ("1,1", ()),
        ("1st,2", (L4, H100)),
        ("GPU-bbbb3333", (H100,)),
        ("GPU-bb", (H100,)),
        ("GPU-bbbb3333,GPU-aaaa1111", (H100, T4)),
        ("GPU-aaaa", ()),
        ("GPU-cccc,GPU-aaaa1111", ()),
    ],
)
def test_visible_devices_are_read_as_the_driver_reads_them(listed, seen):
    assert visible(THREE, listed) == seen


def test_a_mig_slice_is_a_device_of_its_own():
    (slice_,) = visible((H100,), "MIG-1234")
    assert (slice_.uuid, slice_.memory_bytes) == ("MIG-1234", None)
    assert visible((), "MIG-1234") == ()


@unhurried
@given(st.lists(st.integers(0, 7), unique=True, max_size=8))
def test_distinct_numbers_of_gpus_are_those_gpus_in_that_order(numbers):
    eight = tuple(Gpu(index=index) for index in range(8))
    assert [gpu.index for gpu in visible(eight, ",".join(map(str, numbers)))] == numbers


def test_the_survey_tells_how_many_gpus_the_variable_hides(roots):
    host = with_driver(roots, nvml_of(*(replace(gpu, memory_bytes=GB) for gpu in THREE)))
    found = survey({"CUDA_VISIBLE_DEVICES": "2"}, roots=host)
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA H100"]
    assert found.hidden_gpus == 2
    assert survey({}, roots=host).hidden_gpus == 0


# ---------------------------------------------------------------- other accelerators
def pci(roots: Roots, *devices: tuple[str, str, str]) -> None:
    for number, (vendor, device, class_) in enumerate(devices):
        folder = f"bus/pci/devices/0000:00:0{number}.0"
        write(
            roots.sysfs,
            {
                f"{folder}/vendor": f"{vendor}\n",
                f"{folder}/device": f"{device}\n",
                f"{folder}/class": f"{class_}\n",
            },
        )


def test_tpu_chips_are_counted_by_their_pci_numbers_whatever_the_environment_says(roots):
    network_card = ("0x1ae0", "0x0042", "0x020000")
    pci(roots, network_card, *[("0x1ae0", "0x0063", "0x120000")] * 8)
    assert tpu(roots, {}) == Tpu(chips=8, kind="v5e")


def test_tpu_chips_are_counted_by_their_device_files_where_pci_is_hidden(roots):
    write(roots.devfs, {f"accel{number}": "" for number in range(4)})
    assert tpu(roots, {"TPU_ACCELERATOR_TYPE": "v4-8"}) == Tpu(chips=4, kind="v4-8")


def test_the_accelerator_folder_of_other_makers_is_no_tpu(roots):
    write(roots.devfs, {"accel/accel0": ""})
    assert tpu(roots, {"PJRT_DEVICE": "TPU"}) is None


def test_vfio_devices_are_tpu_chips_only_where_libtpu_and_pjrt_say_so(roots, tmp_path):
    write(roots.devfs, {"vfio/vfio": "", "vfio/0": "", "vfio/1": ""})
    host = replace(roots, package=lambda name: tmp_path if name == "libtpu" else None)
    assert tpu(host, {"PJRT_DEVICE": "TPU"}) == Tpu(chips=2)
    assert tpu(host, {}) is None
    assert tpu(roots, {"PJRT_DEVICE": "TPU"}) is None


def test_variables_alone_make_no_tpu(roots):
    environ = {"PJRT_DEVICE": "TPU", "TPU_NAME": "local", "ISTPUVM": "1"}
    assert survey(environ, roots=roots).tpu is None


@pytest.mark.parametrize(
    ("platform", "processor", "mps"),
    [("darwin", "arm64", True), ("darwin", "x86_64", False), ("linux", "arm64", False)],
)
def test_mps_is_for_macs_with_apple_s_own_processor(roots, platform, processor, mps):
    host = replace(roots, platform=platform, processor=lambda: processor)
    assert survey({}, roots=host).mps is mps


def test_intel_gpus_count_for_a_torch_that_is_built_for_them(roots, tmp_path):
    pci(roots, ("0x8086", "0x56c0", "0x038000"), ("0x8086", "0x1234", "0x020000"))
    write(tmp_path, {"torch/version.py": "cuda = None\nxpu = '20250000'\n"})
    host = replace(roots, package=lambda name: tmp_path / name if name == "torch" else None)
    assert intel_gpus(roots) == 1
    assert survey({}, roots=host).xpus == 1
    assert survey({}, roots=roots).xpus == 0


# ---------------------------------------------------------------- packages
CPU_BUILD = """from typing import Optional
__all__ = ['__version__', 'cuda', 'hip', 'xpu']
__version__ = '2.13.0+cpu'
cuda: Optional[str] = None
hip: Optional[str] = None
xpu: Optional[str] = None
"""


@pytest.mark.parametrize(
    ("text", "torch"),
    [
        (CPU_BUILD, Torch(version="2.13.0+cpu", accelerators=frozenset())),
        (
            CPU_BUILD.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '12.8'"),
            Torch(version="2.13.0+cpu", accelerators=frozenset({"cuda"})),
        ),
        (
            CPU_BUILD.replace("hip: Optional[str] = None", "hip = '6.3'"),
            Torch(version="2.13.0+cpu", accelerators=frozenset({"cuda"})),
        ),
        ("", Torch()),
    ],
)
def test_what_torch_is_built_for_is_read_from_its_version_file(roots, tmp_path, text, torch):
    write(tmp_path, {"version.py": text})
    assert installed_torch(replace(roots, package=lambda _name: tmp_path)) == torch


def test_torch_for_a_mac_can_use_its_gpu(roots, tmp_path):
    write(tmp_path, {"version.py": CPU_BUILD})
    host = replace(roots, package=lambda _name: tmp_path, platform="darwin")
    assert installed_torch(host) == Torch(version="2.13.0+cpu", accelerators=frozenset({"mps"}))


def test_a_package_is_found_without_importing_it():
    assert Roots().package("nb_accelerate") == Path(__file__).parents[2] / "nb_accelerate"
    assert Roots().package("no_such_package_at_all") is None


def test_a_stub_without_a_spec_in_the_kernel_s_modules_is_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_xla", ModuleType("torch_xla"))
    assert Roots().package("torch_xla") is None


# ---------------------------------------------------------------- places
@pytest.mark.parametrize(
    ("environ", "modules", "found"),
    [
        ({}, (), ("terminal",)),
        ({}, ("ipykernel.kernelapp",), ("jupyter",)),
        ({"COLAB_RELEASE_TAG": "x"}, ("ipykernel.kernelapp",), ("colab", "jupyter")),
        ({}, ("google.colab",), ("colab",)),
        (
            {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "x"},
            ("google.colab", "ipykernel.kernelapp"),
            ("kaggle", "jupyter"),
        ),
        ({"VSCODE_PID": "1"}, ("ipykernel.kernelapp",), ("vscode", "jupyter")),
        ({"SLURM_JOB_ID": "1"}, (), ("slurm",)),
        ({"SM_HOSTS": "[]"}, (), ("sagemaker",)),
        ({"SAGEMAKER_INTERNAL_IMAGE_URI": "x"}, (), ("sagemaker",)),
        ({"DATABRICKS_RUNTIME_VERSION": "16"}, (), ("databricks",)),
        ({"HOME": "/", "MY_VSCODE_PID": "1"}, (), ("terminal",)),
    ],
)
def test_a_place_is_told_by_its_variables_and_modules(environ, modules, found):
    assert places(environ, modules) == found


FAKES = [
    "COLAB_GPU",
    "COLAB_RELEASE_TAG",
    "KAGGLE_KERNEL_RUN_TYPE",
    "VSCODE_PID",
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "TPU_NAME",
    "PJRT_DEVICE",
    "ISTPUVM",
    "WORLD_SIZE",
    "RANK",
]


@unhurried
@given(st.dictionaries(st.sampled_from(FAKES), st.sampled_from(["", "1", "8", "TPU"])))
def test_a_faked_environment_changes_the_place_and_nothing_that_is_counted(environ):
    nowhere = Path("/nonexistent")
    host = Roots(procfs=nowhere, sysfs=nowhere, devfs=nowhere, platform="linux", affinity=lambda: 8)
    plain, faked = survey({}, roots=host), survey(environ, roots=host)
    assert replace(faked, place=plain.place) == plain
