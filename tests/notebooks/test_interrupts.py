"""The ■ button, `timeout=` and their like: the cell is free again in bounded time, always."""

from __future__ import annotations

import time

import pytest

from tests.notebooks.conftest import IMPORTS
from tests.notebooks.kernel import Cell, CellError, Kernel

# Of ranks that end when they are told to, and of ranks that ignore every signal.
ORDINARY_SECONDS = 5
STUBBORN_SECONDS = 6


def interrupted(kernel: Kernel, cell: Cell, seconds: float) -> CellError:
    """Press ■; the error that the cell ends with, in time."""
    kernel.interrupt()
    began = time.monotonic()
    error = kernel.failed(cell)
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.1f} s"
    return error


def expect_a_launch_to_work(kernel: Kernel) -> None:
    kernel.run("run = notebook_launcher(lambda: 'fine', num_processes=2)", 20)
    assert kernel.ask("list(run.values)") == ["fine", "fine"]


# ---------------------------------------------------------------- ordinary ranks
TRAIN = """
import torch, torch.distributed as dist

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(4)

def train():
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=4, num_workers=2, persistent_workers=True,
        worker_init_fn=lambda index: here("loader"),
    )
    steps = 0
    try:
        while True:
            for batch in loader:
                model(batch).sum().backward()
                steps += 1
                if steps == 3:
                    here()
    except KeyboardInterrupt:
        torch.save(model.module.state_dict(), f"saved-{rank}.pt")
        raise
    finally:
        open(f"finally-{rank}", "w").close()
"""


def test_ordinary_ranks_save_their_work_and_are_gone_with_their_loaders(kernel: Kernel) -> None:
    kernel.run(TRAIN)
    cell = kernel.start("notebook_launcher(train, num_processes=2)")
    kernel.witnesses(6)
    error = interrupted(kernel, cell, ORDINARY_SECONDS)
    assert error.name == "KeyboardInterrupt"
    kernel.expect_all_gone(1)
    for rank in range(2):
        assert (kernel.folder / f"saved-{rank}.pt").stat().st_size > 0
        assert (kernel.folder / f"finally-{rank}").exists()
    expect_a_launch_to_work(kernel)


WAYS_TO_BE_BUSY = {
    "a sleep": "time.sleep(60)",
    "a loop": "while True: sum(range(100))",
    "a collective": "time.sleep(60) if dist.get_rank() else dist.all_reduce(torch.ones(1))",
    "an event": "threading.Event().wait(60)",
    "a subprocess": "subprocess.run(['sleep', '60'])",
    "an input": "sys.stdin.read(); time.sleep(60)",
    "native code": "[torch.randn(500, 500) @ torch.randn(500, 500) for _ in iter(int, 1)]",
}


@pytest.mark.parametrize("busy", WAYS_TO_BE_BUSY)
def test_whatever_ranks_are_busy_with_they_end(kernel: Kernel, busy: str) -> None:
    cell = kernel.start(f"""
    import subprocess
    import torch, torch.distributed as dist

    def train():
        here()
        {WAYS_TO_BE_BUSY[busy]}

    notebook_launcher(train, num_processes=2)
    """)
    kernel.witnesses(2)
    assert interrupted(kernel, cell, ORDINARY_SECONDS).name == "KeyboardInterrupt"
    kernel.expect_all_gone(1)
    expect_a_launch_to_work(kernel)


def test_a_rank_that_swallows_the_interrupt_and_returns_has_been_interrupted(
    kernel: Kernel,
) -> None:
    cell = kernel.start("""
    def train():
        here()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            return "stopped early"

    notebook_launcher(train, num_processes=2)
    """)
    kernel.witnesses(2)
    assert interrupted(kernel, cell, ORDINARY_SECONDS).name == "KeyboardInterrupt"
    assert kernel.ask("nb_accelerate.runs()[-1].outcome['status']") == "interrupted"


def test_ranks_have_time_to_save(kernel: Kernel) -> None:
    cell = kernel.start("""
    def train():
        import torch.distributed as dist
        here()
        try:
            time.sleep(60)
        finally:
            time.sleep(1.5)
            open(f"slowly-saved-{dist.get_rank()}", "w").close()

    notebook_launcher(train, num_processes=2)
    """)
    kernel.witnesses(2)
    assert interrupted(kernel, cell, ORDINARY_SECONDS).name == "KeyboardInterrupt"
    for rank in range(2):
        assert (kernel.folder / f"slowly-saved-{rank}").exists()


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_ranks_of_other_start_methods_end_as_well(kernel: Kernel, start_method: str) -> None:
    cell = kernel.start(f"""
    def train():
        here()
        time.sleep(60)

    notebook_launcher(train, num_processes=2, start_method={start_method!r})
    """)
    kernel.witnesses(2)
    assert interrupted(kernel, cell, ORDINARY_SECONDS).name == "KeyboardInterrupt"
    kernel.expect_all_gone(1)
    expect_a_launch_to_work(kernel)


def test_an_interrupt_ends_code_inline(kernel: Kernel) -> None:
    cell = kernel.start("""
    def train():
        here()
        time.sleep(60)

    notebook_launcher(train, num_processes=1, start_method="inline")
    """)
    kernel.witnesses(1)
    assert interrupted(kernel, cell, ORDINARY_SECONDS).name == "KeyboardInterrupt"


# ---------------------------------------------------------------- ranks that will not
STUBBORN = """
def stubborn():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    here()
    while True:
        time.sleep(1)
"""


def test_ranks_that_ignore_every_signal_are_gone_in_time(kernel: Kernel) -> None:
    cell = kernel.start(STUBBORN + "\nnotebook_launcher(stubborn, num_processes=2)")
    kernel.witnesses(2)
    assert interrupted(kernel, cell, STUBBORN_SECONDS).name == "KeyboardInterrupt"
    kernel.expect_all_gone(0.5)
    expect_a_launch_to_work(kernel)


def test_a_second_interrupt_skips_the_wait(kernel: Kernel) -> None:
    cell = kernel.start(STUBBORN + "\nnotebook_launcher(stubborn, num_processes=2)")
    kernel.witnesses(2)
    kernel.interrupt()
    kernel.listen(0.5)
    assert not cell.is_done
    assert interrupted(kernel, cell, 1).name == "KeyboardInterrupt"
    kernel.expect_all_gone(0.5)
    expect_a_launch_to_work(kernel)


def test_a_second_interrupt_skips_the_wait_for_exit_functions_too(kernel: Kernel) -> None:
    cell = kernel.start("""
    import atexit

    def train():
        atexit.register(time.sleep, 60)
        here()

    notebook_launcher(train, num_processes=2)
    """)
    kernel.witnesses(2)
    kernel.listen(0.2)
    kernel.interrupt()
    kernel.listen(0.5)
    assert not cell.is_done
    assert interrupted(kernel, cell, 1).name == "KeyboardInterrupt"
    kernel.expect_all_gone(0.5)


def test_many_interrupts_in_a_row_cut_no_cleaning_up_short(kernel: Kernel) -> None:
    for pause in (0.005, 0.01, 0.02, 0.03):
        kernel.forget_witnesses()
        cell = kernel.start(STUBBORN + "\nnotebook_launcher(stubborn, num_processes=2)")
        kernel.witnesses(2)
        for _ in range(10):
            kernel.interrupt()
            time.sleep(pause)
        # The last may have met ipykernel itself, which then answers no more to this cell.
        kernel.listen(0.5)
        kernel.forget(cell)
        kernel.expect_all_gone(1)
        expect_a_launch_to_work(kernel)


def test_stopped_ranks_are_gone_in_time(kernel: Kernel) -> None:
    cell = kernel.start("""
    def train():
        here()
        os.kill(os.getpid(), signal.SIGSTOP)

    notebook_launcher(train, num_processes=2)
    """)
    kernel.witnesses(2)
    assert interrupted(kernel, cell, STUBBORN_SECONDS).name == "KeyboardInterrupt"
    kernel.expect_all_gone(0.5)
    expect_a_launch_to_work(kernel)


# ---------------------------------------------------------------- at odd moments
def test_an_interrupt_of_the_first_launch_while_the_template_starts() -> None:
    with Kernel() as kernel:
        for _ in range(3):
            cell = kernel.start(
                IMPORTS + "\nprint('launching')\nnotebook_launcher(time.sleep, (60,), 2)"
            )
            kernel.until(lambda cell=cell: "launching" in cell.text, 20)  # type: ignore[misc]
            assert interrupted(kernel, cell, 2).name == "KeyboardInterrupt"
            kernel.run("nb_accelerate.kill_all()")
        expect_a_launch_to_work(kernel)
        kernel.expect_no_strays()


@pytest.mark.parametrize("delay", [0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12])
def test_an_interrupt_at_any_moment_of_a_launch_frees_the_cell(
    kernel: Kernel, delay: float
) -> None:
    cell = kernel.start("""
    def brief():
        time.sleep(0.02)

    os.write(os.open("begun", os.O_WRONLY | os.O_CREAT), b"!")
    for _ in range(100):
        notebook_launcher(brief, num_processes=2)
    """)
    kernel.until((kernel.folder / "begun").exists, 20)
    (kernel.folder / "begun").unlink()
    time.sleep(delay)
    assert interrupted(kernel, cell, ORDINARY_SECONDS).name == "KeyboardInterrupt"
    expect_a_launch_to_work(kernel)


def test_an_interrupt_of_a_rank_that_has_returned_leaves_its_files_whole(kernel: Kernel) -> None:
    cell = kernel.start("""
    import atexit

    def train():
        import torch.distributed as dist
        rank = dist.get_rank()
        def at_exit():
            time.sleep(0.5)
            with open(f"at-exit-{rank}", "w") as file:
                file.write("whole")
        atexit.register(at_exit)
        here()
        if rank == 0:
            time.sleep(60)

    notebook_launcher(train, num_processes=2)
    """)
    kernel.witnesses(2)
    assert interrupted(kernel, cell, ORDINARY_SECONDS).name == "KeyboardInterrupt"
    for rank in range(2):
        assert (kernel.folder / f"at-exit-{rank}").read_text() == "whole"


# ---------------------------------------------------------------- timeout
def test_a_run_that_takes_too_long_is_ended(kernel: Kernel) -> None:
    cell = kernel.start("""
    def train():
        here()
        try:
            time.sleep(60)
        finally:
            open("saved-at-timeout", "w").close()

    notebook_launcher(train, num_processes=2, timeout=1)
    """)
    error = kernel.failed(cell)
    assert cell.seconds < 1 + ORDINARY_SECONDS
    assert error.name == "RunTimeout"
    assert "train" in error.text
    assert kernel.ask("isinstance(sys.last_value, TimeoutError), sys.last_value.run.status") == [
        True,
        "timed out",
    ]
    assert (kernel.folder / "saved-at-timeout").exists()
    kernel.expect_all_gone(1)


def test_a_run_of_stubborn_ranks_is_ended_by_its_timeout(kernel: Kernel) -> None:
    cell = kernel.start(STUBBORN + "\nnotebook_launcher(stubborn, num_processes=2, timeout=1)")
    assert kernel.failed(cell).name == "RunTimeout"
    assert cell.seconds < 1 + STUBBORN_SECONDS
    kernel.expect_all_gone(0.5)


def test_a_run_within_its_timeout_is_left_alone(kernel: Kernel) -> None:
    kernel.run("run = notebook_launcher(lambda: 1, num_processes=2, timeout=20)")
    assert kernel.ask("run.value") == 1
