"""Random faults at random moments: the cell comes back, the culprit is named, nobody is left.

Every fault can be had again by its name: `--fault-seed` is the number before the slash.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.fault import OWN_DOING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Lodging
    from tests.faults.fault import Fault
    from tests.notebooks.kernel import Cell, CellError, Kernel, Witness

pytestmark = pytest.mark.timeout(90)

# From the fault to the end of the cell. Ranks that ignore signals have 6 s by contract.
PROMPT_SECONDS = 5
BOUNDED_SECONDS = 9
KERNEL_GONE_SECONDS = 6

WORK = """
import ctypes, os, random, signal, sys, time
import torch, torch.distributed as dist
import nb_accelerate
from nb_accelerate import notebook_launcher
from nb_accelerate.replica import current_replica
from witness import here

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000_000
    def __getitem__(self, index):
        return torch.ones(2)

class Injected(Exception):
    pass

def hurt(kind):
    if kind == "exception":
        raise Injected("on purpose")
    if kind == "os._exit":
        os._exit(3)
    if kind == "sys.exit":
        sys.exit(4)
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "abort":
        os.abort()

def work(fault):
    rank = dist.get_rank()
    chance = random.Random(f"{fault['seed']}/{fault['number']}/{rank}")
    if fault["stubborn"]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rows = iter(torch.utils.data.DataLoader(
        Rows(), num_workers=fault["loaders"], worker_init_fn=lambda index: here(f"loader {rank}")
    ))
    due = time.monotonic() + fault["moment"]
    here(f"rank {rank}")
    while True:
        next(rows)
        if fault["own_doing"] and rank == fault["victim"] and time.monotonic() > due:
            hurt(fault["kind"])
            return "early"
        dist.all_reduce(torch.ones(1))
        current_replica().reporter.metrics({"x": 1.0}, None)
        if fault["chatty"]:
            print("." * 50)
        time.sleep(chance.choice([0, 0.001, 0.01]))

def fine():
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)
"""


def test_a_fault_ends_the_run_and_nothing_else(fault: Fault, lodging: Lodging) -> None:
    kernel = lodging.kernel()
    kernel.forget_witnesses()
    kernel.run(WORK)
    if fault.kind.startswith("kernel"):
        kernel_fails(kernel, fault)
    else:
        run_fails(kernel, fault)
        kernel.run(f"run = notebook_launcher(fine, num_processes={fault.world_size})", 30)
        assert kernel.ask("list(run.values)") == [fault.world_size] * fault.world_size


# ---------------------------------------------------------------- the run
def run_fails(kernel: Kernel, fault: Fault) -> None:
    cell = launched(kernel, fault)
    began = inflicted(kernel, fault, cell)
    error = kernel.failed(cell, 30)
    took = time.monotonic() - began
    check_culprit(kernel, fault, error)
    patient = fault.stubborn or "STOP" in fault.kind
    assert took < fault.moment + (BOUNDED_SECONDS if patient else PROMPT_SECONDS), f"{took:.1f} s"
    kernel.expect_all_gone(1)
    kernel.expect_no_strays()
    kernel.expect_no_temporary_files()


def launched(kernel: Kernel, fault: Fault) -> Cell:
    timeout = 1 + fault.moment if "timeout" in fault.kind else None
    cell = kernel.start(f"""
    print("begun", flush=True)
    notebook_launcher(work, ({fault.orders},), {fault.world_size}, timeout={timeout})
    """)
    kernel.until(lambda: "begun" in cell.text, 20, "the launch")
    return cell


def inflicted(kernel: Kernel, fault: Fault, cell: Cell) -> float:
    """Let it happen; when the cell's time to end began."""
    if fault.kind in OWN_DOING:
        kernel.witnesses(fault.world_size)
    elif fault.kind == "timeout":
        return time.monotonic() + 1
    elif fault.kind in ACTIONS_ON_THE_LAUNCH:
        kernel.listen(fault.moment)
        ACTIONS_ON_THE_LAUNCH[fault.kind](kernel, fault)
    else:
        kernel.witnesses(fault.world_size * (1 + fault.loaders))
        kernel.listen(fault.moment)
        assert not cell.is_done, f"it has ended before anything happened:\n{cell.error}"
        ACTIONS_ON_RANKS[fault.kind](kernel, fault)
    return time.monotonic()


def interrupt(kernel: Kernel, _fault: Fault) -> None:
    kernel.interrupt()


def interrupt_twice(kernel: Kernel, fault: Fault) -> None:
    kernel.interrupt()
    kernel.listen(fault.gap)
    if kernel.is_busy:
        kernel.interrupt()


def kill_template(kernel: Kernel, _fault: Fault) -> None:
    template = kernel.template()
    assert template is not None
    template.kill()


def kill_loader(kernel: Kernel, fault: Fault) -> None:
    os.kill(witness(kernel, f"loader {fault.victim}").pid, signal.SIGKILL)


def stop_and_interrupt(kernel: Kernel, fault: Fault) -> None:
    send(signal.SIGSTOP)(kernel, fault)
    kernel.listen(fault.gap)
    kernel.interrupt()


def send(number: signal.Signals) -> Callable[[Kernel, Fault], None]:
    def send_to_victim(kernel: Kernel, fault: Fault) -> None:
        os.kill(witness(kernel, f"rank {fault.victim}").pid, number)

    return send_to_victim


def witness(kernel: Kernel, name: str) -> Witness:
    return next(w for w in kernel.witnesses() if w.name == name)


ACTIONS_ON_THE_LAUNCH: dict[str, Callable[[Kernel, Fault], None]] = {
    "interrupt": interrupt,
    "two interrupts": interrupt_twice,
}
ACTIONS_ON_RANKS: dict[str, Callable[[Kernel, Fault], None]] = {
    "SIGKILL": send(signal.SIGKILL),
    "SIGSEGV": send(signal.SIGSEGV),
    "SIGTERM": send(signal.SIGTERM),
    "SIGSTOP and interrupt": stop_and_interrupt,
    "SIGSTOP and timeout": send(signal.SIGSTOP),
    "template killed": kill_template,
    "loader killed": kill_loader,
}


# ---------------------------------------------------------------- the culprit
# kind: (class, attributes)
VERDICTS: dict[str, tuple[str, dict[str, object]]] = {
    "exception": ("Injected", {}),
    "early return": ("LeftEarly", {}),
    "os._exit": ("WorkerDied", {"exit_code": 3, "signal": None}),
    "sys.exit": ("WorkerDied", {"exit_code": 4, "signal": None}),
    "segfault": ("WorkerDied", {"exit_code": None, "signal": 11}),
    "abort": ("WorkerDied", {"exit_code": None, "signal": 6}),
    "SIGKILL": ("WorkerDied", {"exit_code": None, "signal": 9}),
    "SIGSEGV": ("WorkerDied", {"exit_code": None, "signal": 11}),
    "SIGTERM": ("WorkerDied", {"exit_code": None, "signal": 15}),
    "SIGSTOP and interrupt": ("KeyboardInterrupt", {}),
    "SIGSTOP and timeout": ("RunTimeout", {}),
    "interrupt": ("KeyboardInterrupt", {}),
    "two interrupts": ("KeyboardInterrupt", {}),
    "timeout": ("RunTimeout", {}),
    "template killed": ("WorkerDied", {}),
    "loader killed": ("RuntimeError", {}),
}
# What torch says of a loader worker that dies while it hands over a file descriptor.
ALSO = {"loader killed": {"ConnectionResetError", "EOFError", "ConnectionRefusedError"}}
NAMELESS = {"KeyboardInterrupt", "RunTimeout"}


def check_culprit(kernel: Kernel, fault: Fault, error: CellError) -> None:
    name, attributes = VERDICTS[fault.kind]
    assert error.name in {name, *ALSO.get(fault.kind, ())}, error
    if name == "LeftEarly":
        assert kernel.ask("list(sys.last_value.ranks)") == [fault.victim], error
    elif fault.kind == "template killed":
        assert "template" in error.text, error
    elif name not in NAMELESS:
        assert f"rank {fault.victim}" in error.traceback, error
    for attribute, value in attributes.items():
        assert kernel.ask(f"sys.last_value.{attribute}") == value, error


# ---------------------------------------------------------------- the kernel
def kernel_fails(kernel: Kernel, fault: Fault) -> None:
    launched(kernel, fault)
    if fault.number % 2:
        kernel.witnesses(fault.world_size)
    kernel.listen(fault.moment)
    if fault.kind == "kernel killed":
        kernel.kill()
        kernel.expect_nothing_left(KERNEL_GONE_SECONDS)
        return
    kernel.restart(politely=bool(fault.victim))
    kernel.expect_nothing_left(KERNEL_GONE_SECONDS)
    kernel.run(WORK)
    kernel.run(f"run = notebook_launcher(fine, num_processes={fault.world_size})", 30)
    assert kernel.ask("list(run.values)") == [fault.world_size] * fault.world_size
