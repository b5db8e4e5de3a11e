"""A rank fails while another waits for it: the cell says who, why and where, and soon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.notebooks.kernel import CellError, Kernel

# From the launch to the error, on a machine that is busy with other things.
SOON_SECONDS = 3

PREPARE = """
import ctypes
import torch, torch.distributed as dist

def wait_for_all():
    total = torch.ones(1)
    dist.all_reduce(total)  # everyone has to come here
    return total.item()
"""


@pytest.fixture(scope="module", autouse=True)
def prepared(kernel_of_module: Kernel) -> None:
    kernel_of_module.run(PREPARE)
    kernel_of_module.run("notebook_launcher(wait_for_all, num_processes=2)")


def fails_soon(kernel: Kernel, code: str) -> CellError:
    cell = kernel.start(code)
    error = kernel.failed(cell)
    assert cell.seconds < SOON_SECONDS, f"it took {cell.seconds:.1f} s"
    return error


def told(kernel: Kernel, *names: str) -> list[object]:
    """Attributes of the last error."""
    return list(kernel.ask(f"[getattr(sys.last_value, name) for name in {names!r}]"))


# ---------------------------------------------------------------- the kinds of end
ENDS = {
    # statement: (class, words, signal, exit code)
    "ctypes.string_at(0)": ("WorkerDied", ["SIGSEGV", "native library"], 11, None),
    "os.abort()": ("WorkerDied", ["SIGABRT", "native library"], 6, None),
    "os.kill(os.getpid(), signal.SIGKILL)": ("WorkerDied", ["SIGKILL", "memory"], 9, None),
    "os.kill(os.getpid(), signal.SIGBUS)": ("WorkerDied", ["SIGBUS", "/dev/shm"], 7, None),
    "os.kill(os.getpid(), signal.SIGTERM)": ("WorkerDied", ["SIGTERM", "outside"], 15, None),
    "os._exit(3)": ("WorkerDied", ["exit code 3"], None, 3),
    "os._exit(0)": ("WorkerDied", ["exit code 0"], None, 0),
    "sys.exit(3)": ("WorkerDied", ["sys.exit(3)"], None, 3),
    "sys.exit('no data')": ("WorkerDied", ["no data"], None, 1),
}


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("end", ENDS)
def test_a_rank_that_ends_is_named_with_its_cause(kernel: Kernel, end: str, culprit: int) -> None:
    name, words, signal, exit_code = ENDS[end]
    error = fails_soon(
        kernel,
        f"""
        def train():
            if dist.get_rank() == {culprit}:
                {end}
            wait_for_all()

        notebook_launcher(train, num_processes=2)
        """,
    )
    assert error.name == name
    assert f"rank {culprit}" in error.text
    for word in words:
        assert word in error.text
    assert told(kernel, "rank", "signal", "exit_code") == [culprit, signal, exit_code]
    assert kernel.ask("sys.last_value.run.status") == "failed"


@pytest.mark.parametrize("crash", ["ctypes.string_at(0)", "os.abort()"])
def test_a_native_crash_is_told_with_the_line_of_the_cell(kernel: Kernel, crash: str) -> None:
    cell = kernel.start(f"""
    def train():
        if dist.get_rank() == 1:
            {crash}
        wait_for_all()

    notebook_launcher(train, num_processes=2)
    """)
    error = kernel.failed(cell)
    assert f"{cell.label}, line 3" in error.text
    assert "Fatal Python error" in cell.text


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_exception_is_raised_in_the_cell_as_itself(kernel: Kernel, culprit: int) -> None:
    cell = kernel.start(f"""
    def train():
        if dist.get_rank() == {culprit}:
            raise ZeroDivisionError("by hand")  # here it is
        wait_for_all()

    notebook_launcher(train, num_processes=2)
    """)
    error = kernel.failed(cell)
    assert cell.seconds < SOON_SECONDS
    assert (error.name, error.text) == ("ZeroDivisionError", "by hand")
    assert f"{cell.label}, line 3" in error.traceback
    assert 'raise ZeroDivisionError("by hand")  # here it is' in error.traceback
    assert f"rank {culprit} of 2" in error.traceback
    assert f"rank {1 - culprit} waited in all_reduce" in error.traceback


def test_the_lines_of_every_cell_on_the_way_are_shown(kernel: Kernel) -> None:
    first = kernel.run("""
    def inner(x):
        return x / 0  # the innermost line
    """)
    second = kernel.run("""
    class Net(torch.nn.Module):
        def forward(self, x):
            return inner(x)  # the line between
    """)
    third = kernel.start("""
    def train():
        net = Net()
        if dist.get_rank() == 1:
            net(1)  # the outermost line
        wait_for_all()

    notebook_launcher(train, num_processes=2)
    """)
    error = kernel.failed(third)
    for cell, line in (
        (third, "the outermost line"),
        (second, "the line between"),
        (first, "the innermost line"),
    ):
        assert cell.label in error.traceback
        assert line in error.traceback
    assert "<dynamic-code>" not in error.traceback
    assert error.traceback.index("outermost line") < error.traceback.index("innermost line")


def test_the_traceback_shows_none_of_our_own_lines_of_the_rank(kernel: Kernel) -> None:
    error = kernel.fails("""
    def train():
        raise ValueError("mine")

    notebook_launcher(train, num_processes=2)
    """)
    assert "worker/rank.py" not in error.traceback
    assert "tblib" not in error.traceback


def test_of_three_ranks_the_one_that_failed_first_is_the_culprit(kernel: Kernel) -> None:
    error = fails_soon(
        kernel,
        """
        def train():
            if dist.get_rank() == 2:
                raise KeyError("the cause")
            try:
                wait_for_all()
            except RuntimeError as error:
                raise RuntimeError("a consequence") from error

        notebook_launcher(train, num_processes=3)
        """,
    )
    assert error.name == "KeyError"
    assert "rank 2 of 3" in error.traceback


def test_a_failure_of_all_ranks_is_told_once(kernel: Kernel) -> None:
    error = fails_soon(
        kernel,
        """
        def train():
            raise ValueError(f"from rank {dist.get_rank()}")

        notebook_launcher(train, num_processes=2)
        """,
    )
    assert error.name == "ValueError"
    assert error.text in {"from rank 0", "from rank 1"}


def test_a_rank_that_computes_is_stopped_when_another_fails(kernel: Kernel) -> None:
    error = fails_soon(
        kernel,
        """
        def train():
            here()
            if dist.get_rank() == 0:
                while True:
                    sum(range(1000))
            raise ValueError("enough")

        notebook_launcher(train, num_processes=2)
        """,
    )
    assert error.name == "ValueError"
    kernel.expect_all_gone(1)


def test_finally_blocks_of_the_other_ranks_run(kernel: Kernel) -> None:
    kernel.fails("""
    def train():
        if dist.get_rank() == 1:
            raise ValueError("enough")
        try:
            time.sleep(60)
        finally:
            open("finally-ran", "w").close()

    notebook_launcher(train, num_processes=2)
    """)
    assert (kernel.folder / "finally-ran").exists()


# ---------------------------------------------------------------- exits that are none
@pytest.mark.parametrize("leave", ["sys.exit(0)", "sys.exit()", "raise SystemExit"])
def test_a_rank_may_leave_with_code_zero(kernel: Kernel, leave: str) -> None:
    kernel.run(f"""
    def train():
        wait_for_all()
        if dist.get_rank() == 1:
            {leave}
        return "returned"

    run = notebook_launcher(train, num_processes=2)
    """)
    assert kernel.ask("list(run.values)") == ["returned", None]


# ---------------------------------------------------------------- awkward exceptions
AWKWARD = """
class NeedsCode(Exception):
    def __init__(self, *, code, where):
        super().__init__(f"code {code}")
        self.code, self.where = code, where

class HoldsLock(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.text = text
        self.lock = threading.Lock()

def refuse(*_):
    raise TypeError("this cannot be loaded")

class NoLoading(Exception):
    def __reduce__(self):
        return refuse, ()

class NoDumping(Exception):
    def __reduce__(self):
        raise TypeError("this cannot be pickled")

class NoText(Exception):
    def __str__(self):
        raise ValueError("no text")
"""


@pytest.fixture
def awkward(kernel: Kernel) -> Kernel:
    kernel.run(AWKWARD)
    return kernel


def raised_by_rank_1(expression: str) -> str:
    return f"""
    def train():
        if dist.get_rank() == 1:
            raise {expression}  # awkward
        wait_for_all()

    notebook_launcher(train, num_processes=2)
    """


def test_a_class_that_needs_keywords_is_rebuilt_with_its_attributes(awkward: Kernel) -> None:
    error = fails_soon(awkward, raised_by_rank_1("NeedsCode(code=7, where='there')"))
    assert (error.name, error.text) == ("NeedsCode", "code 7")
    assert awkward.ask("isinstance(sys.last_value, NeedsCode)")
    assert told(awkward, "code", "where") == [7, "there"]


def test_an_attribute_that_cannot_travel_does_not_cost_the_exception(awkward: Kernel) -> None:
    error = fails_soon(awkward, raised_by_rank_1("HoldsLock('held')"))
    assert (error.name, error.text) == ("HoldsLock", "held")
    assert awkward.ask("sys.last_value.text") == "held"


@pytest.mark.parametrize("name", ["NoLoading", "NoDumping"])
def test_an_exception_that_cannot_be_rebuilt_is_told_by_name(awkward: Kernel, name: str) -> None:
    error = fails_soon(awkward, raised_by_rank_1(f"{name}('its text')"))
    assert error.name == "WorkerRaised"
    assert name in error.text
    assert "its text" in error.text
    assert "# awkward" in error.text, "the line of the cell is lost"
    assert told(awkward, "rank") == [1]


def test_an_exception_without_a_text_is_told_all_the_same(awkward: Kernel) -> None:
    error = fails_soon(awkward, raised_by_rank_1("NoText()"))
    assert error.name in {"NoText", "WorkerRaised"}
    assert "rank 1" in error.traceback


def test_causes_and_notes_of_an_exception_come_along(kernel: Kernel) -> None:
    error = kernel.fails("""
    def train():
        try:
            {}["missing"]
        except KeyError as cause:
            error = ValueError("the last")
            error.add_note("a note of mine")
            raise error from cause

    notebook_launcher(train, num_processes=2)
    """)
    assert error.name == "ValueError"
    for words in ("KeyError", "missing", "direct cause", "a note of mine"):
        assert words in error.traceback


def test_a_group_of_exceptions_is_raised_as_such(kernel: Kernel) -> None:
    # IPython prints an uncaught group without the message that makes a cell fail.
    kernel.run("""
    def train():
        raise ExceptionGroup("both", [ValueError("one"), OSError("two")])

    try:
        notebook_launcher(train, num_processes=2)
    except* ValueError as group:
        values = [repr(error) for error in group.exceptions]
    except* OSError as group:
        pass
    """)
    assert kernel.ask("values") == ["ValueError('one')"]


def test_an_interrupt_that_a_rank_raises_itself_is_its_failure(kernel: Kernel) -> None:
    error = fails_soon(kernel, raised_by_rank_1("KeyboardInterrupt"))
    assert error.name == "KeyboardInterrupt"
    assert kernel.ask("1 + 1") == 2


def test_endless_recursion_is_told_in_a_readable_length(kernel: Kernel) -> None:
    error = kernel.fails("""
    def deeper(n):
        return deeper(n + 1)

    notebook_launcher(deeper, (0,), num_processes=2)
    """)
    assert error.name == "RecursionError"
    assert len(error.traceback.splitlines()) < 700  # of some thousands


def test_a_syntax_error_in_a_module_of_the_rank_is_shown_with_its_file(kernel: Kernel) -> None:
    (kernel.folder / "broken_module.py").write_text("def f(:\n    pass\n")
    error = kernel.fails("""
    def train():
        import broken_module

    notebook_launcher(train, num_processes=2)
    """)
    assert error.name == "SyntaxError"
    assert "broken_module.py" in error.traceback


def test_a_failure_before_the_function_is_told_as_such(kernel: Kernel) -> None:
    error = fails_soon(
        kernel,
        """
        class Refuses:
            def __init__(self):
                self.state = 1
            def __setstate__(self, state):
                raise RuntimeError("this cannot be rebuilt")

        def train(thing):
            here()

        notebook_launcher(train, (Refuses(),), num_processes=2)
        """,
    )
    assert "this cannot be rebuilt" in error.traceback
    assert "before the function began" in error.traceback
    assert kernel.witnesses() == []


def test_a_failing_loader_worker_is_told_with_its_line(kernel: Kernel) -> None:
    error = kernel.fails("""
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            raise IndexError(f"no row {index}")  # in the loader's worker

    def train():
        for _ in torch.utils.data.DataLoader(Broken(), num_workers=1):
            pass

    notebook_launcher(train, num_processes=2)
    """)
    assert error.name == "IndexError"
    assert "in the loader's worker" in error.traceback


def test_a_killed_loader_worker_is_told(kernel: Kernel) -> None:
    error = kernel.fails("""
    class Deadly(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            here("loader")
            os.kill(os.getpid(), signal.SIGKILL)

    def train():
        for _ in torch.utils.data.DataLoader(Deadly(), num_workers=2):
            pass

    notebook_launcher(train, num_processes=2)
    """)
    assert error.name == "RuntimeError"
    assert "DataLoader worker" in error.text
    kernel.expect_all_gone(3)


# ---------------------------------------------------------------- leaving others behind
COLLECTIVES = {
    "all_reduce": "dist.all_reduce(torch.ones(1))",
    "all_gather": "dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1))",
    "broadcast": "dist.broadcast(torch.ones(1), src=1)",
    "barrier": "dist.barrier()",
    "all_gather_object": "dist.all_gather_object([None, None], {})",
    "recv": "dist.recv(torch.ones(1), src=1)",
}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_rank_that_left_while_another_waits_is_named(kernel: Kernel, collective: str) -> None:
    cell = kernel.start(f"""
    def train():
        if dist.get_rank() == 0:
            {COLLECTIVES[collective]}

    notebook_launcher(train, num_processes=2)
    """)
    error = kernel.failed(cell)
    assert cell.seconds < SOON_SECONDS
    assert error.name == "LeftEarly"
    assert f"rank 1 returned while rank 0 waits in {collective}" in error.text
    assert f"{cell.label}, line 3" in error.text
    assert told(kernel, "ranks") == [[1]]


def test_an_early_return_is_named_where_the_others_wait(kernel: Kernel) -> None:
    cell = kernel.start("""
    def train():
        if dist.get_rank() == 1:
            return "early"
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))

    notebook_launcher(train, num_processes=2)
    """)
    error = kernel.failed(cell)
    assert cell.seconds < SOON_SECONDS
    assert error.name == "LeftEarly"
    assert "rank 1 returned while rank 0 waits" in error.text
    assert f"{cell.label}, line 4" in error.text
    assert kernel.ask("sys.last_value.run.values[1]") == "early"


def test_a_rank_that_misses_the_backward_pass_of_others_is_named(kernel: Kernel) -> None:
    cell = kernel.start("""
    def train():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        for _ in range(3 - dist.get_rank()):
            model(torch.ones(1, 2)).sum().backward()  # one time less in rank 1

    notebook_launcher(train, num_processes=2)
    """)
    error = kernel.failed(cell)
    assert cell.seconds < SOON_SECONDS
    assert error.name == "LeftEarly"
    assert "rank 1 returned while rank 0 waits in" in error.text
    assert f"{cell.label}, line 4" in error.text


# ---------------------------------------------------------------- hangs
def test_who_waits_where_is_told_at_growing_intervals(kernel: Kernel) -> None:
    cell = kernel.start("""
    def train():
        if dist.get_rank() == 1:
            time.sleep(5)  # it is late
        wait_for_all()
        return "done"

    run = notebook_launcher(train, num_processes=2, hang_notice_seconds=1)
    """)
    kernel.until(lambda: "No progress" in cell.text, 4, "a notice")
    assert time.time() - cell.began < 3.5
    kernel.succeeded(cell)
    assert kernel.ask("list(run.values)") == ["done", "done"]
    notices = [p.time - cell.began for p in cell.pieces if "No progress" in p.text]
    assert 2 <= len(notices) <= 3, notices  # after 1, 2 and 4 s
    assert "rank 0 waits in all_reduce" in cell.text
    assert "everyone has to come here" in cell.text
    assert f"rank 1 is at {cell.label}, line 3" in cell.text
    assert "it is late" in cell.text


def test_ranks_that_work_are_not_said_to_hang(kernel: Kernel) -> None:
    cell = kernel.run("""
    def train():
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            wait_for_all()
            time.sleep(0.1)

    notebook_launcher(train, num_processes=2, hang_notice_seconds=0.5)
    """)
    assert "No progress" not in cell.text
