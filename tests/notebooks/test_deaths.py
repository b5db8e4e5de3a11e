"""Kernels, templates and ranks that are killed or restarted in mid-run: nobody is left behind."""

from __future__ import annotations

import os
import signal

import pytest

from tests.notebooks.conftest import IMPORTS
from tests.notebooks.kernel import Kernel, KernelGone

# For all processes of a kernel that has died, the ranks' one second of SIGTERM included.
GONE_SECONDS = 4

WORK = """
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(4)

def work(stubborn=False):
    if stubborn:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=4, num_workers=1, worker_init_fn=lambda index: here("loader")
    )
    for number, batch in enumerate(loader):
        if number == 1:
            here()
"""

LAUNCHES = {
    "ordinary ranks": "notebook_launcher(work, num_processes=2)",
    "stubborn ranks": "notebook_launcher(work, (True,), num_processes=2)",
    "spawned ranks": "notebook_launcher(work, num_processes=2, start_method='spawn')",
    "forked ranks": "notebook_launcher(work, num_processes=2, start_method='fork')",
    "a run in the background": "notebook_launcher(work, num_processes=2, block=False)",
}


def working(kernel: Kernel, launch: str) -> None:
    """Start a run; its ranks and loaders work when this returns."""
    kernel.run(WORK)
    kernel.start(launch)
    kernel.witnesses(4)


# ---------------------------------------------------------------- the kernel
@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_killed_kernel_takes_everybody_along(new_kernel: Kernel, launch: str) -> None:
    working(new_kernel, LAUNCHES[launch])
    new_kernel.kill()
    new_kernel.expect_nothing_left(GONE_SECONDS)


def test_ranks_outlive_neither_kernel_nor_template(new_kernel: Kernel) -> None:
    """Both are killed at one moment, as for lack of memory; no rank can run a line of Python."""
    new_kernel.start("""
    import ctypes

    def hold_the_lock_of_python():
        here()
        ctypes.PyDLL(None).sleep(100)

    notebook_launcher(hold_the_lock_of_python, num_processes=2)
    """)
    new_kernel.witnesses(2)
    template = new_kernel.template()
    assert template is not None
    template.suspend()  # it is not to see the kernel's end
    new_kernel.kill()
    template.kill()
    new_kernel.expect_nothing_left(GONE_SECONDS, folders=False)


def test_a_kernel_killed_between_launches_leaves_no_template(new_kernel: Kernel) -> None:
    new_kernel.run("notebook_launcher(here, num_processes=2)")
    new_kernel.kill()
    new_kernel.expect_nothing_left(GONE_SECONDS)


def test_a_kernel_killed_while_its_template_starts_leaves_nothing(new_kernel: Kernel) -> None:
    new_kernel.kill()
    new_kernel.expect_nothing_left(GONE_SECONDS)


@pytest.mark.parametrize("launch", ["ordinary ranks", "a run in the background"])
def test_a_restart_in_mid_run_leaves_nothing_and_works(new_kernel: Kernel, launch: str) -> None:
    working(new_kernel, LAUNCHES[launch])
    new_kernel.restart()
    new_kernel.expect_nothing_left(GONE_SECONDS)
    new_kernel.run(IMPORTS)
    new_kernel.run("run = notebook_launcher(lambda: 'fine', num_processes=2)")
    assert new_kernel.ask("list(run.values)") == ["fine", "fine"]


def test_a_shutdown_in_mid_run_leaves_nothing(new_kernel: Kernel) -> None:
    working(new_kernel, LAUNCHES["a run in the background"])
    new_kernel.shut_down()
    new_kernel.expect_nothing_left(GONE_SECONDS)


@pytest.mark.parametrize("way", ["os._exit(1)", "os.abort()", "os.kill(os.getpid(), 15)"])
def test_a_kernel_that_ends_itself_leaves_nothing(new_kernel: Kernel, way: str) -> None:
    working(new_kernel, LAUNCHES["a run in the background"])
    with pytest.raises(KernelGone):
        new_kernel.finish(new_kernel.start(way), 10)
    new_kernel.expect_nothing_left(GONE_SECONDS)


def test_a_process_that_the_kernel_forked_does_not_keep_ranks_alive(new_kernel: Kernel) -> None:
    """It holds copies of the kernel's sockets, so their ends are not seen."""
    working(new_kernel, LAUNCHES["a run in the background"])
    new_kernel.run("""
    if os.fork() == 0:
        here("forked")
        time.sleep(60)
        os._exit(0)
    """)
    forked = next(w for w in new_kernel.witnesses(5) if w.name == "forked")
    new_kernel.kill()
    new_kernel.expect_nothing_left(GONE_SECONDS, but=[forked.pid])
    os.kill(forked.pid, signal.SIGKILL)


# ---------------------------------------------------------------- the template
def test_a_template_killed_in_mid_run_is_named_and_the_next_launch_works(kernel: Kernel) -> None:
    kernel.run(WORK)
    cell = kernel.start("notebook_launcher(work, num_processes=2)")
    kernel.witnesses(4)
    template = kernel.template()
    assert template is not None
    template.kill()
    error = kernel.failed(cell, 10)
    assert error.name == "WorkerDied"
    assert "template" in error.text
    assert "SIGKILL" in error.text
    kernel.expect_all_gone(GONE_SECONDS)
    kernel.run("run = notebook_launcher(lambda: 'fine', num_processes=2)")
    assert kernel.ask("list(run.values)") == ["fine", "fine"]


def test_a_template_killed_between_launches_is_replaced(kernel: Kernel) -> None:
    kernel.run("notebook_launcher(os.getpid, num_processes=2)")
    template = kernel.template()
    assert template is not None
    template.kill()
    kernel.run("run = notebook_launcher(lambda: 'fine', num_processes=2)")
    assert kernel.ask("list(run.values)") == ["fine", "fine"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_made_ahead_that_was_killed_is_not_used(kernel: Kernel, victim: int) -> None:
    kernel.run("run = notebook_launcher(os.getpid, num_processes=2)")
    first = kernel.ask("list(run.values)")
    template = kernel.template()
    assert template is not None

    def ranks_made_ahead():
        _keeper, *ranks = sorted(template.children(), key=lambda p: p.pid)
        return [rank for rank in ranks if rank.pid not in first]

    kernel.until(lambda: len(ranks_made_ahead()) == 2, 20, "the ranks made ahead")
    ahead = ranks_made_ahead()
    ahead[victim].kill()
    ahead[victim].wait(5)
    kernel.run("run = notebook_launcher(lambda: 'fine', num_processes=2)")
    assert kernel.ask("list(run.values)") == ["fine", "fine"]


# ---------------------------------------------------------------- a rank's own children
def test_loader_workers_of_a_killed_rank_are_gone(kernel: Kernel) -> None:
    kernel.run(WORK)
    cell = kernel.start("notebook_launcher(work, num_processes=2)")
    rank = next(w for w in kernel.witnesses(4) if w.name == "rank")
    os.kill(rank.pid, signal.SIGKILL)
    error = kernel.failed(cell, 10)
    assert error.name == "WorkerDied"
    assert "SIGKILL" in error.text
    kernel.expect_all_gone(2)


@pytest.mark.parametrize("end", ["return", "raise ValueError", "os._exit(1)", "time.sleep(60)"])
def test_a_daemon_that_left_its_ranks_group_is_gone_with_the_run(kernel: Kernel, end: str) -> None:
    cell = kernel.start(f"""
    import subprocess

    def train():
        code = "from witness import here; here('daemon'); import time; time.sleep(100)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        while open("witnesses").read().count("daemon") < 2:
            time.sleep(0.05)
        {end}

    open("witnesses", "w").close()
    notebook_launcher(train, num_processes=2)
    """)
    kernel.witnesses(2)
    if "sleep" in end:
        kernel.interrupt()
    kernel.finish(cell, 20)
    kernel.expect_all_gone(3)


def test_children_of_a_run_beside_are_left_alone(kernel: Kernel) -> None:
    kernel.run("""
    import subprocess

    def train():
        here()
        child = subprocess.Popen(["sleep", "3"], start_new_session=True)
        return child.wait()

    run = notebook_launcher(train, num_processes=2, block=False)
    """)
    kernel.witnesses(2)
    for _ in range(5):
        kernel.run("notebook_launcher(os.getpid, num_processes=2)")
    kernel.run("run.wait()")
    assert kernel.ask("list(run.values)") == [0, 0]
