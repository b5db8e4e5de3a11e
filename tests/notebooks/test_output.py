"""What ranks write: live, in whole lines, nothing lost, whoever writes it and however much."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.notebooks.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.notebooks.kernel import Cell

STAMP = re.compile(r"<(\d+\.\d+)>")


def lags(cell: Cell) -> list[float]:
    """Seconds from each stamp's writing in a rank to its arrival."""
    return [
        piece.time - float(stamp) for piece in cell.pieces for stamp in STAMP.findall(piece.text)
    ]


def log_of(kernel: Kernel) -> list[str]:
    """All lines in the folder of the run called `run`."""
    return Path(kernel.ask("str(run.folder)")).joinpath("log.txt").read_text().splitlines()


# ---------------------------------------------------------------- live
def test_prints_arrive_while_the_training_runs(kernel: Kernel) -> None:
    kernel.run("notebook_launcher(os.getpid, num_processes=2)")
    # What ranks print alike is shown once, so each says who it is.
    cell = kernel.run("""
    def ticks():
        for _ in range(8):
            print(f"<{time.time()}> of {os.environ['RANK']}")
            time.sleep(0.3)

    run = notebook_launcher(ticks, num_processes=2)
    """)
    assert len(lags(cell)) == 16, cell.text
    assert max(lags(cell)) < 0.5


WRITERS = {
    "a print": 'print(f"<{time.time()}>")',
    "a print without a newline": 'print(f"<{time.time()}>", end="")',
    "an unflushed write": 'sys.stdout.write(f"<{time.time()}>")',
    "standard error": 'print(f"<{time.time()}>", file=sys.stderr)',
    "a write to the descriptor": 'os.write(1, f"<{time.time()}>\\n".encode())',
    "a write to the other descriptor": 'os.write(2, f"<{time.time()}>".encode())',
    "C's printf": 'libc.printf(f"<{time.time()}>\\n".encode())',
    "a subprocess": 'subprocess.run(["date", "+<%s.%N>"])',
    "a thread": 'threading.Thread(target=lambda: print(f"<{time.time()}>")).start()',
    "a logger": 'logging.getLogger("x").warning(f"<{time.time()}>")',
    "a warning": 'warnings.warn(f"<{time.time()}>")',
}


@pytest.mark.parametrize("writer", WRITERS)
def test_whoever_writes_it_arrives_at_once(kernel: Kernel, writer: str) -> None:
    cell = kernel.run(f"""
    import ctypes, logging, subprocess, warnings

    def write():
        libc = ctypes.CDLL(None)
        for _ in range(3):
            {WRITERS[writer]}
            time.sleep(0.3)

    run = notebook_launcher(write, num_processes=1)
    """)
    found = lags(cell)
    assert len(found) >= (1 if writer == "a warning" else 3)
    assert max(found) < 0.25


# ---------------------------------------------------------------- whole
def test_lines_of_several_writers_of_a_rank_do_not_tear_each_other(kernel: Kernel) -> None:
    kernel.run("""
    def write(name):
        for number in range(400):
            print(f"{name} {number} " + name * 150 + " end")

    def crowd():
        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        child = os.fork()
        if child == 0:
            write("c")
            os._exit(0)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.waitpid(child, 0)

    run = notebook_launcher(crowd, num_processes=2)
    """)
    lines = log_of(kernel)
    torn = [line for line in lines if not re.fullmatch(r"\[rank \d\] (\w) \d+ \1{150} end", line)]
    assert torn == []
    assert len(lines) == 2 * 3 * 400


def test_text_that_is_no_utf_8_arrives_and_harms_nothing(kernel: Kernel) -> None:
    cell = kernel.run(r"""
    def write():
        os.write(1, b"caf\xe9 \xff\xfe end\n")
        os.write(1, "é".encode()[:1])
        time.sleep(0.1)
        os.write(1, "é".encode()[1:] + b" whole\n")
        print("unpaired \udce9 surrogate")
        return "done"

    run = notebook_launcher(write, num_processes=1)
    """)
    assert kernel.ask("run.value") == "done"
    assert re.search("caf\N{REPLACEMENT CHARACTER} .* end", cell.text)
    assert "é whole" in cell.text
    assert "surrogate" in cell.text


def test_each_line_says_whose_it_is(kernel: Kernel) -> None:
    cell = kernel.run("""
    def speak():
        import torch.distributed as dist
        print(f"I am {dist.get_rank()}")

    run = notebook_launcher(speak, num_processes=3)
    """)
    for rank in range(3):
        assert re.search(rf"\[rank {rank}\] I am {rank}", cell.text)


def test_a_line_without_an_end_is_whole_in_the_log(kernel: Kernel) -> None:
    kernel.run("""
    def dots():
        for _ in range(5):
            print(".", end="")
            time.sleep(0.1)
        print(" done")
        print("and no newline", end="")

    run = notebook_launcher(dots, num_processes=1)
    """)
    assert log_of(kernel) == ["[rank 0] ..... done", "[rank 0] and no newline"]


def test_a_bar_is_drawn_over_itself(kernel: Kernel) -> None:
    cell = kernel.run("""
    def bar():
        for done in range(0, 101, 2):
            print(f"\\rtraining {done}%", end="", file=sys.stderr)
            time.sleep(0.01)
        print(file=sys.stderr)
        print("after the bar")

    run = notebook_launcher(bar, num_processes=2)
    """)
    assert "training 100%" in cell.shown
    assert "training 48%" not in cell.text, "each state of the bar is a line of its own"
    assert "after the bar" in cell.text
    assert len(log_of(kernel)) <= 2 * 3


# ---------------------------------------------------------------- much
FLOOD = """
def flood():
    import torch.distributed as dist
    rank = dist.get_rank()
    for number in range(20_000):
        print(f"line {number} of {rank}: " + "x" * 40)
    print(f"the last of {rank}")
"""


@pytest.fixture
def memory_of(kernel: Kernel) -> psutil.Process:
    return psutil.Process(kernel.pid)


def test_a_flood_loses_nothing_and_stays_bounded(kernel: Kernel, memory_of: psutil.Process) -> None:
    kernel.run(FLOOD)
    kernel.run("notebook_launcher(os.getpid, num_processes=2)")
    before = memory_of.memory_info().rss
    cell = kernel.run("run = notebook_launcher(flood, num_processes=2)")
    assert cell.seconds < 20
    for rank in range(2):
        assert f"the last of {rank}" in cell.text
    assert len(cell.text) < 4_000_000
    assert len(cell.pieces) < 50 * cell.seconds + 100, "the front end is flooded with messages"
    assert memory_of.memory_info().rss - before < 150 << 20
    lines = log_of(kernel)
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[rank {rank}]")]
        assert mine[:-1] == [f"[rank {rank}] line {n} of {rank}: {'x' * 40}" for n in range(20_000)]
        assert mine[-1] == f"[rank {rank}] the last of {rank}"
    assert kernel.ask("1 + 1", 2) == 2


def test_the_kernel_answers_while_a_run_in_the_background_floods(kernel: Kernel) -> None:
    kernel.run(FLOOD)
    kernel.run("""
    def floods():
        for _ in range(3):
            flood()

    run = notebook_launcher(floods, num_processes=2, block=False)
    """)
    waits = []
    while kernel.ask("run.status") == "running":
        began = time.monotonic()
        assert kernel.ask("1 + 1") == 2
        waits.append(time.monotonic() - began)
    kernel.run("run.wait(30)")
    assert waits, "the flood was over before anything was asked"
    assert max(waits) < 2
    assert len(log_of(kernel)) == 2 * 3 * 20_001


def test_one_line_of_megabytes_is_no_harm(kernel: Kernel) -> None:
    cell = kernel.run("""
    def giant():
        print("x" * 3_000_000)
        print("after it")

    run = notebook_launcher(giant, num_processes=2)
    """)
    assert "after it" in cell.text
    assert sum(line.count("x") for line in log_of(kernel)) == 2 * 3_000_000


# ---------------------------------------------------------------- early
NOISE = """
import os, sys
if "ipykernel_launcher" not in sys.orig_argv:
    os.write(2, b"noise at start\\n" * 15_000)
"""


@pytest.fixture
def noisy_kernel(tmp_path: Path) -> Iterator[Kernel]:
    """Whatever it starts writes 200 kB to standard error before anything of ours runs there."""
    (tmp_path / "sitecustomize.py").write_text(NOISE)
    root = str(Path(__file__).parents[2])
    with Kernel(PYTHONPATH=f"{tmp_path}:{root}") as kernel:
        kernel.run("from nb_accelerate import notebook_launcher; import os, sys")
        yield kernel


def test_much_output_before_the_group_is_ready_stops_nobody(noisy_kernel: Kernel) -> None:
    noisy_kernel.run("""
    def loud():
        os.write(2, b"noise at once\\n" * 100_000)
        return "done"

    values = [
        list(notebook_launcher(loud, num_processes=2, start_method=method).values)
        for method in ("template", "spawn")
    ]
    """)
    assert noisy_kernel.ask("values") == [["done"] * 2] * 2
