"""Taken ports, stale variables, other kernels: nothing outside a launch reaches into it, and
nothing of a launch stays in the kernel.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.notebooks.conftest import IMPORTS
from tests.notebooks.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PORT = 29500

SEE = """
def see():
    import torch, torch.distributed as dist
    here()
    total = torch.ones(1)
    dist.all_reduce(total)
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
             "NODE_RANK", "PMI_RANK", "TORCHELASTIC_ERROR_FILE"]
    return int(total), os.getpgid(0), [os.environ.get(name) for name in names]
"""


@pytest.fixture(scope="module", autouse=True)
def see(kernel_of_module: Kernel) -> None:
    kernel_of_module.run(SEE)


@pytest.fixture
def port_29500_is_taken() -> Iterator[None]:
    with socket.socket() as taker, contextlib.suppress(OSError):  # another program will do as well
        taker.bind(("127.0.0.1", DEFAULT_PORT))
        taker.listen()
        yield
        return
    yield


# ---------------------------------------------------------------- what is around
@pytest.mark.usefixtures("port_29500_is_taken")
def test_a_taken_port_29500_is_no_obstacle(kernel: Kernel) -> None:
    kernel.run("run = notebook_launcher(see, num_processes=2)")
    assert kernel.ask("[total for total, *_ in run.values]") == [2, 2]


def test_a_port_that_was_asked_for_and_is_taken_is_refused_with_its_holder(kernel: Kernel) -> None:
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        port = taker.getsockname()[1]
        error = kernel.fails(f"notebook_launcher(see, num_processes=2, use_port={port})")
    assert error.name == "PlanError"
    assert f"use_port={port}" in error.text
    assert str(os.getpid()) in error.text, "the holder is this process"


def test_a_port_that_was_asked_for_is_the_one_they_meet_at(kernel: Kernel) -> None:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    kernel.run(f"""
    run = notebook_launcher(lambda: os.environ["MASTER_PORT"], num_processes=2, use_port={port})
    """)
    assert kernel.ask("list(run.values)") == [str(port)] * 2


def test_variables_of_another_launcher_in_the_kernel_do_not_reach_the_ranks(
    kernel: Kernel,
) -> None:
    kernel.run("""
    stale = {"RANK": "5", "LOCAL_RANK": "5", "WORLD_SIZE": "7", "MASTER_ADDR": "192.0.2.1",
             "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "old", "GROUP_RANK": "3",
             "NODE_RANK": "3", "PMI_RANK": "5", "TORCHELASTIC_ERROR_FILE": "old"}
    os.environ.update(stale)
    before = dict(os.environ)
    try:
        run = notebook_launcher(see, num_processes=2)
        unchanged = dict(os.environ) == before
    finally:
        for name in stale:
            del os.environ[name]
    """)
    assert kernel.ask("unchanged")
    assert kernel.ask("[variables for *_, variables in run.values]") == [
        [str(rank), str(rank), "2", "2", "127.0.0.1", None, None, None] for rank in range(2)
    ]


@pytest.mark.parametrize("start_method", ["template", "spawn"])
def test_code_that_makes_its_own_group_as_under_torchrun_runs_unchanged(
    kernel: Kernel, start_method: str
) -> None:
    kernel.run(f"""
    def script():
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return int(total)

    run = notebook_launcher(script, num_processes=2, start_method={start_method!r})
    """)
    assert kernel.ask("list(run.values)") == [2, 2]


def test_two_kernels_that_launch_at_once_do_not_meet(kernel: Kernel) -> None:
    launches = """
    worlds = [notebook_launcher(see, num_processes=2).value[0] for _ in range(5)]
    """
    with Kernel() as other:
        other.run(IMPORTS + SEE)
        cells = kernel.start(launches), other.start(launches)
        for one, cell in zip((kernel, other), cells, strict=True):
            one.succeeded(cell)
            assert one.ask("worlds") == [2] * 5


def test_workers_are_in_groups_of_their_own(kernel: Kernel) -> None:
    """Jupyter sends its interrupt to the kernel's whole group."""
    kernel.run("run = notebook_launcher(see, num_processes=2)")
    groups = kernel.ask("[os.getpgid(0), *(group for _, group, _ in run.values)]")
    assert len(set(groups)) == 3


# ---------------------------------------------------------------- the network
@pytest.mark.parametrize("start_method", ["template", "spawn"])
def test_nothing_listens_or_talks_beyond_loopback(kernel: Kernel, start_method: str) -> None:
    cell = kernel.start(f"""
    os.environ["GLOO_SOCKET_IFNAME"] = {interface_beyond_loopback()!r}  # for a cluster, say

    def meet():
        import torch, torch.distributed as dist
        dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1))
        here()
        while not os.path.exists("seen"):
            time.sleep(0.01)

    run = notebook_launcher(meet, num_processes=2, start_method={start_method!r})
    """)
    kernel.witnesses(2)
    sockets = [found for process in kernel.processes() for found in connections(process)]
    (kernel.folder / "seen").touch()
    kernel.succeeded(cell)
    (kernel.folder / "seen").unlink()
    kernel.run("del os.environ['GLOO_SOCKET_IFNAME']")
    assert len(sockets) >= 4, "the ranks' own connections were not found"
    assert [s for s in sockets if not is_loopback(s)] == []


def interface_beyond_loopback() -> str:
    """One of this machine, where it has one."""
    for name, addresses in psutil.net_if_addrs().items():
        ours = [a.address for a in addresses if a.family == socket.AF_INET]
        if ours and not ipaddress.ip_address(ours[0]).is_loopback:
            return name
    return "lo"


def connections(process: psutil.Process) -> list[Any]:
    try:
        return list(process.net_connections(kind="inet"))
    except psutil.NoSuchProcess:
        return []


def is_loopback(connection: Any) -> bool:
    ends = [end for end in (connection.laddr, connection.raddr) if end]
    return all(ipaddress.ip_address(end.ip.removeprefix("::ffff:")).is_loopback for end in ends)


# ---------------------------------------------------------------- what stays
SURROUNDINGS = """
import torch

def surroundings():
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)
    return {
        "environment": dict(os.environ),
        "signals": [repr(signal.getsignal(number)) for number in signals],
        "device": str(torch.get_default_device()),
        "number format": str(torch.get_default_dtype()),
        "threads of torch": torch.get_num_threads(),
        "random state": torch.get_rng_state().sum().item(),
        "directory": os.getcwd(),
        "path": [*sys.path],
        "arguments": [*sys.argv],
        "group": torch.distributed.is_initialized(),
        "streams": [repr(sys.stdout), repr(sys.stderr)],
    }

def holdings():
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }

def fail():
    raise ValueError("on purpose")

def dawdle():
    here()
    time.sleep(60)
"""


def test_the_kernel_is_as_before_after_success_failure_and_interrupt(kernel: Kernel) -> None:
    kernel.run(SURROUNDINGS)
    before = kernel.ask("surroundings()")
    kernel.run("notebook_launcher(see, num_processes=2)")
    assert kernel.ask("surroundings()") == before
    held = kernel.ask("holdings()")
    for _ in range(2):
        kernel.run("notebook_launcher(see, num_processes=2)")
        assert kernel.fails("notebook_launcher(fail, num_processes=2)").name == "ValueError"
        interrupt(kernel, kernel.start("notebook_launcher(dawdle, num_processes=2)"))
        assert kernel.ask("surroundings()") == before
    assert kernel.ask("holdings()") == held


def interrupt(kernel: Kernel, cell: Any) -> None:
    kernel.forget_witnesses()
    kernel.witnesses(2)
    kernel.interrupt()
    assert kernel.failed(cell).name == "KeyboardInterrupt"


def test_many_launches_leave_no_descriptors_or_threads(kernel: Kernel) -> None:
    kernel.run(SURROUNDINGS)
    launch_and_prepare = """
    notebook_launcher(see, num_processes=2)
    time.sleep(0.5)  # for the ranks of the next launch, which are ordered in a thread
    """
    kernel.run(launch_and_prepare)
    held = kernel.ask("holdings()")
    kernel.run("for _ in range(15): notebook_launcher(see, num_processes=2)")
    kernel.run(launch_and_prepare)
    assert kernel.ask("holdings()") == held
