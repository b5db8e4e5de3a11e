"""`block=False`: the cell is free, the run lives on and shows itself where it was launched; and
the start methods other than the template.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.notebooks.kernel import Kernel

COUNT = """
def count(name, seconds):
    import torch.distributed as dist
    here()
    for number in range(int(seconds / 0.1)):
        print(f"{name} {number}")
        time.sleep(0.1)
    return f"{name} of {dist.get_rank()}"
"""


@pytest.fixture(autouse=True)
def count(kernel: Kernel) -> None:
    kernel.run(COUNT)


# ---------------------------------------------------------------- a run of its own
def test_the_cell_is_free_while_the_run_goes_on(kernel: Kernel) -> None:
    kernel.run("notebook_launcher(os.getpid, num_processes=2)")
    cell = kernel.run("run = notebook_launcher(count, ('a', 1.5), 2, block=False)")
    assert cell.seconds < 1
    assert kernel.ask("run.status") == "running"
    error = kernel.fails("run.value")
    assert error.name == "LaunchError"
    assert "run.wait()" in error.text
    kernel.run("run.wait()")
    assert kernel.ask("run.status, run.value, list(run.values)") == [
        "finished",
        "a of 0",
        ["a of 0", "a of 1"],
    ]
    assert "a 14" in cell.shown
    assert "finished" in cell.shown


def test_two_runs_at_once_show_themselves_in_their_own_cells(kernel: Kernel) -> None:
    one = kernel.run("first = notebook_launcher(count, ('first', 1.5), 2, block=False)")
    two = kernel.run("second = notebook_launcher(count, ('second', 1.5), 2, block=False)")
    other = kernel.run("print('my own words'); time.sleep(0.5)")
    kernel.run("first.wait(), second.wait()")
    kernel.until(lambda: "finished" in one.shown and "finished" in two.shown, 5, "their ends")
    assert "first 14" in one.shown
    assert "second" not in one.shown
    assert "second 14" in two.shown
    assert "first" not in two.shown
    assert other.text == "my own words\n"
    assert other.displays == []
    assert kernel.ask("[*first.values, *second.values]") == [
        "first of 0",
        "first of 1",
        "second of 0",
        "second of 1",
    ]


def test_a_blocking_run_beside_one_in_the_background(kernel: Kernel) -> None:
    kernel.run("behind = notebook_launcher(count, ('behind', 2), 2, block=False)")
    kernel.witnesses(2)
    cell = kernel.run("front = notebook_launcher(count, ('front', 0.5), 2)")
    assert "behind" not in cell.shown
    assert kernel.ask("front.value, behind.status") == ["front of 0", "running"]
    kernel.run("behind.wait()")
    assert kernel.ask("behind.value") == "behind of 0"


def test_an_interrupt_of_a_blocking_run_leaves_the_one_in_the_background(kernel: Kernel) -> None:
    kernel.run("behind = notebook_launcher(count, ('behind', 3), 2, block=False)")
    kernel.witnesses(2)
    cell = kernel.start("notebook_launcher(count, ('front', 60), 2)")
    kernel.witnesses(4)
    kernel.interrupt()
    assert kernel.failed(cell, 5).name == "KeyboardInterrupt"
    assert kernel.ask("behind.status") == "running"
    kernel.run("behind.wait()")
    assert kernel.ask("list(behind.values)") == ["behind of 0", "behind of 1"]


def test_a_run_can_be_stopped(kernel: Kernel) -> None:
    cell = kernel.run("run = notebook_launcher(count, ('a', 60), 2, block=False)")
    kernel.witnesses(2)
    stopping = kernel.run("run.stop()")
    assert stopping.seconds < 5
    assert kernel.ask("run.status, run.error") == ["stopped", None]
    kernel.expect_all_gone(1)
    kernel.until(lambda: "stopped" in cell.shown, 5, "the end in its own cell")
    kernel.run("run.stop()")  # a second time is no harm


def test_a_failed_run_raises_where_it_is_waited_for(kernel: Kernel) -> None:
    cell = kernel.start("""
    def fail():
        raise ValueError("in the background")

    run = notebook_launcher(fail, num_processes=2, block=False)
    """)
    kernel.succeeded(cell)
    for _ in range(2):
        error = kernel.fails("run.wait()")
        assert (error.name, error.text) == ("ValueError", "in the background")
        assert "fail" in error.traceback
    assert kernel.ask("run.status, type(run.error).__name__") == ["failed", "ValueError"]
    kernel.until(lambda: "in the background" in cell.shown, 5, "the error in its own cell")


def test_waiting_has_a_limit_and_can_be_interrupted_without_ending_the_run(
    kernel: Kernel,
) -> None:
    kernel.run("run = notebook_launcher(count, ('a', 4), 2, block=False)")
    assert kernel.fails("run.wait(0.2)").name == "TimeoutError"
    cell = kernel.start("run.wait()")
    kernel.witnesses(2)
    kernel.listen(0.3)
    kernel.interrupt()
    assert kernel.failed(cell, 3).name == "KeyboardInterrupt"
    assert kernel.ask("run.status") == "running"
    kernel.run("run.wait()")
    assert kernel.ask("run.value") == "a of 0"


def test_a_run_can_be_awaited_with_other_things(kernel: Kernel) -> None:
    kernel.run("""
    import asyncio

    async def tick():
        for number in range(5):
            await asyncio.sleep(0.05)
        return "ticked"

    run = notebook_launcher(count, ('b', 0.5), 2, block=False)
    ticking = asyncio.create_task(tick())
    awaited = await run
    ticked = ticking.done()
    """)
    assert kernel.ask("awaited is run, run.value, ticked") == [True, "b of 0", True]


def test_a_run_whose_launching_thread_has_ended_goes_on(kernel: Kernel) -> None:
    """The signal that ends a child with its parent is of the thread that forked it."""
    kernel.run("""
    started = []

    def launch():
        started.append(notebook_launcher(count, ('a', 1.5), 2, block=False))

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    """)
    kernel.witnesses(2)
    assert kernel.ask("thread.is_alive(), started[0].status") == [False, "running"]
    kernel.run("started[0].wait()")
    assert kernel.ask("list(started[0].values)") == ["a of 0", "a of 1"]


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_ranks_that_a_thread_started_outlive_it(kernel: Kernel, start_method: str) -> None:
    kernel.run(f"""
    started = []

    def launch():
        started.append(notebook_launcher(
            count, ('a', 1), 2, block=False, start_method={start_method!r}
        ))

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    started[0].wait()
    """)
    assert kernel.ask("list(started[0].values)") == ["a of 0", "a of 1"]


def test_several_threads_may_launch_at_once(kernel: Kernel) -> None:
    kernel.run("""
    done = {}

    def launch(name):
        done[name] = list(notebook_launcher(count, (name, 0.3), 2, block=True).values)

    threads = [threading.Thread(target=launch, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    """)
    assert kernel.ask("done") == {name: [f"{name} of 0", f"{name} of 1"] for name in "abc"}


def test_what_runs_can_be_listed_and_ended(kernel: Kernel) -> None:
    kernel.run("run = notebook_launcher(count, ('a', 60), 2, block=False)")
    kernel.witnesses(2)
    told = kernel.ask("[(p.pid, p.name) for p in nb_accelerate.ps()]")
    assert {w.pid for w in kernel.witnesses()} < {pid for pid, _ in told}
    names = [name for _, name in told]
    assert names.count("nb-template") == 1
    assert {"nb-rank-0", "nb-rank-1"} < set(names)
    kernel.run("nb_accelerate.kill_all()")
    assert kernel.ask("nb_accelerate.ps(), run.status") == [[], "stopped"]
    kernel.expect_nothing_left(1)
    kernel.run("run = notebook_launcher(count, ('b', 0.1), 2)")
    assert kernel.ask("run.value") == "b of 0"


# ---------------------------------------------------------------- start methods
@pytest.mark.parametrize("start_method", ["template", "spawn", "fork"])
def test_every_start_method_gives_a_world_of_two(kernel: Kernel, start_method: str) -> None:
    cell = kernel.run(f"""
    def train(x):
        import torch, torch.distributed as dist
        here()
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"I am {{dist.get_rank()}}")
        return int(total), os.environ["RANK"], os.getpgid(0) == os.getpid(), x

    run = notebook_launcher(train, ([5],), 2, start_method={start_method!r})
    """)
    assert kernel.ask("list(run.values)") == [[2, str(r), True, [5]] for r in range(2)]
    assert "[rank 1] I am 1" in cell.text
    kernel.expect_all_gone(1)


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_failures_are_told_alike_by_every_start_method(kernel: Kernel, start_method: str) -> None:
    kernel.run("""
    import torch  # forked ranks have it from here

    def train(end):
        import torch, torch.distributed as dist
        if dist.get_rank() == 1:
            end()
        dist.all_reduce(torch.ones(1))

    def raising():
        raise ValueError("boom")
    """)
    for end, name in (
        ("raising", "ValueError"),
        ("lambda: os.kill(os.getpid(), 9)", "WorkerDied"),
    ):
        error = kernel.fails(
            f"notebook_launcher(train, ({end},), 2, start_method={start_method!r})"
        )
        assert error.name == name
        assert "rank 1" in error.traceback


def test_a_forked_rank_has_what_cannot_be_pickled(kernel: Kernel) -> None:
    kernel.run("""
    lock = threading.Lock()
    run = notebook_launcher(lambda: repr(type(lock)), num_processes=2, start_method="fork")
    """)
    assert "lock" in kernel.ask("run.value")
    assert kernel.fails("notebook_launcher(lambda: lock, num_processes=2)").name == "PayloadError"


def test_a_forked_copy_of_a_kernel_that_has_computed_hangs_nobody(kernel: Kernel) -> None:
    """It cannot work (OpenMP's threads are lost), so it is refused or ends in time."""
    began = time.monotonic()
    cell = kernel.start("""
    import torch
    x = torch.randn(500, 500)
    (x @ x).sum()
    run = notebook_launcher(
        lambda: (x @ x).sum().item(), num_processes=2, start_method="fork", threads_per_rank=2,
        timeout=10,
    )
    """)
    kernel.finish(cell, 30)
    assert time.monotonic() - began < 20
    if cell.error is not None:
        assert cell.error.name == "PlanError"
        assert "fork" in cell.error.text


def test_code_inline_runs_in_the_kernel_itself(kernel: Kernel) -> None:
    cell = kernel.run("""
    seen = []

    def train(x):
        print("in the cell")
        seen.append(x)
        return os.getpid()

    run = notebook_launcher(train, (5,), 1, start_method="inline")
    """)
    assert kernel.ask("run.value == os.getpid(), seen, run.status") == [True, [5], "finished"]
    assert "in the cell\n" in cell.text
    error = kernel.fails("""
    def fail():
        raise ValueError("inline")

    notebook_launcher(fail, (), 1, start_method="inline")
    """)
    assert error.name == "ValueError"
    assert "raise ValueError" in error.traceback


@pytest.mark.parametrize("arguments", ["num_processes=2", "num_processes=1, block=False"])
def test_inline_refuses_what_it_cannot(kernel: Kernel, arguments: str) -> None:
    error = kernel.fails(f"notebook_launcher(here, (), {arguments}, start_method='inline')")
    assert error.name in {"PlanError", "SpecError"}
    assert "inline" in error.text
    assert kernel.witnesses() == []
