"""A kernel that people have worked in: devices touched, pools computed, locks held, places faked.

No launch forks it, so none of that may matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.notebooks.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

# From before the import of the library on, nobody in this kernel may ask for a device.
WATCHED_IMPORT = """
import os, sys, threading, time, types
import torch

touches = []

def watched(name):
    def touch(*args, **kwargs):
        touches.append(name)
        raise RuntimeError(f"{name} was called in the kernel")
    return touch

torch._C._cuda_getDeviceCount = watched("_cuda_getDeviceCount")
torch.cuda._lazy_init = watched("_lazy_init")

import nb_accelerate
from nb_accelerate import notebook_launcher
from nb_accelerate.errors import PlanError
from witness import here

def see():
    import torch.distributed as dist
    here()
    total = torch.ones(1)
    dist.all_reduce(total)
    return {
        "rank": dist.get_rank(),
        "world": int(total),
        "initialised": torch.cuda.is_initialized(),
        "bad fork": torch.cuda._is_in_bad_fork(),
        "bitsandbytes": "bitsandbytes" in sys.modules,
    }
"""

CLEAN = [
    {"rank": r, "world": 2, "initialised": False, "bad fork": False, "bitsandbytes": False}
    for r in range(2)
]


@pytest.fixture(scope="module")
def kernel_of_module() -> Iterator[Kernel]:
    with Kernel(OMP_NUM_THREADS="2") as kernel:
        kernel.run(WATCHED_IMPORT)
        yield kernel


# ---------------------------------------------------------------- devices
def test_importing_and_launching_touch_no_device(kernel: Kernel) -> None:
    kernel.run("run = notebook_launcher(see, num_processes=2)")
    assert kernel.ask("list(run.values)") == CLEAN
    assert kernel.ask("touches") == []


def test_a_kernel_in_which_cuda_is_initialised_launches_clean_workers(kernel: Kernel) -> None:
    kernel.run("""
    honest, torch.cuda.is_initialized = torch.cuda.is_initialized, lambda: True
    try:
        run = notebook_launcher(see, num_processes=2)
    finally:
        torch.cuda.is_initialized = honest
    """)
    assert kernel.ask("list(run.values)") == CLEAN


def test_a_library_that_touched_the_device_at_its_import_is_no_obstacle(kernel: Kernel) -> None:
    kernel.run("""
    sys.modules["bitsandbytes"] = types.ModuleType("bitsandbytes")
    try:
        run = notebook_launcher(see, num_processes=2)
    finally:
        del sys.modules["bitsandbytes"]
    """)
    assert kernel.ask("list(run.values)") == CLEAN


# ---------------------------------------------------------------- threads and locks
def test_workers_compute_after_the_kernel_has_computed(kernel: Kernel) -> None:
    """OpenMP's pool does not live through a fork: the first parallel operation hangs."""
    kernel.run(
        """
    x = torch.randn(400, 400, requires_grad=True)
    (x @ x).sum().backward()
    assert torch.get_num_threads() == 2

    def compute():
        y = torch.randn(400, 400, requires_grad=True)
        (y @ y).sum().backward()
        return torch.get_num_threads(), torch.isfinite(y.grad).all().item()

    run = notebook_launcher(compute, num_processes=2, threads_per_rank=2)
    """,
        30,
    )
    assert kernel.ask("list(run.values)") == [[2, True]] * 2


def test_locks_that_threads_of_the_kernel_hold_are_free_in_the_workers(kernel: Kernel) -> None:
    (kernel.folder / "library.py").write_text("import threading\nlock = threading.Lock()\n")
    kernel.run("""
    import library

    let_go = threading.Event()

    def hold():
        with library.lock:
            let_go.wait(30)

    holders = [threading.Thread(target=hold, daemon=True)]
    holders += [threading.Thread(target=let_go.wait, daemon=True) for _ in range(8)]
    for holder in holders:
        holder.start()
    assert library.lock.locked()

    def use():
        return library.lock.acquire(timeout=5), threading.active_count() < 8

    try:
        run = notebook_launcher(use, num_processes=2)
    finally:
        let_go.set()
        for holder in holders:
            holder.join()
    """)
    assert kernel.ask("list(run.values)") == [[True, True]] * 2


def test_a_launch_works_where_fork_is_forbidden(kernel: Kernel) -> None:
    kernel.run("""
    import multiprocessing

    def forbidden(*args):
        raise ValueError("cannot find context for 'fork'")

    honest = multiprocessing.get_context, os.fork
    multiprocessing.get_context, os.fork = forbidden, forbidden
    try:
        run = notebook_launcher(see, num_processes=2)
    finally:
        multiprocessing.get_context, os.fork = honest
    """)
    assert kernel.ask("list(run.values)") == CLEAN


# ---------------------------------------------------------------- places
PLACES = {
    "a plain machine": "",
    "Colab": """
        places = {"COLAB_RELEASE_TAG": "release-colab_20260101", "COLAB_GPU": "0"}
        names = ["google", "google.colab"]
    """,
    "Kaggle": """
        places = {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "KAGGLE_DATA_PROXY_TOKEN": "x"}
        names = []
    """,
}


@pytest.mark.parametrize("place", PLACES)
def test_asked_for_two_it_is_one_world_of_two(kernel: Kernel, place: str) -> None:
    kernel.run(f"""
    places, names = {{}}, []
    exec({PLACES[place]!r}.replace("        ", ""))
    shell = get_ipython()

    class ColabShell(type(shell)):
        def __str__(self):
            return "<google.colab._shell.Shell object>"

    plain = type(shell)
    os.environ.update(places)
    sys.modules.update({{name: types.ModuleType(name) for name in names}})
    if names:
        shell.__class__ = ColabShell
    before = dict(os.environ)
    try:
        run = notebook_launcher(see, num_processes=2)
        unchanged = dict(os.environ) == before
    finally:
        shell.__class__ = plain
        for name in places:
            del os.environ[name]
        for name in names:
            del sys.modules[name]
    """)
    assert kernel.ask("list(run.values)") == CLEAN
    assert kernel.ask("unchanged")


def test_the_banner_says_what_is_launched_on(kernel: Kernel) -> None:
    cell = kernel.run("run = notebook_launcher(see, num_processes=2)")
    assert "2 CPU processes" in cell.text.splitlines()[0]


def test_not_asked_for_a_number_a_machine_without_devices_runs_one(kernel: Kernel) -> None:
    cell = kernel.run("run = notebook_launcher(see)")
    assert kernel.ask("run.value['world'], len(run.values)") == [1, 1]
    assert "CPU" in cell.text.splitlines()[0]


def test_devices_that_are_not_there_are_refused_before_anything_starts(kernel: Kernel) -> None:
    error = kernel.fails("notebook_launcher(see, num_processes=2, hardware='cuda')")
    assert error.name == "PlanError"
    assert "cuda" in error.text.lower()
    assert len(error.text.split()) > 8, "the refusal is no sentence"
    assert kernel.witnesses() == []
