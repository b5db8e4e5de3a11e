"""What holds within a rank: one launch, many verdicts."""

from __future__ import annotations

import os
import py_compile
import signal
import sys
import threading
from pathlib import Path

import pytest

from nb_accelerate.launch.environment import kernel_environment

pytestmark = pytest.mark.timeout(90)


def facts(folder: str) -> dict[str, object]:
    """All that a rank sees of itself; runs in the rank."""
    import atexit
    import time

    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    try:
        typed = input()
    except EOFError:
        typed = "nothing to read"
    left_open = open(f"{folder}/open-{rank}", "w")  # noqa: SIM115, PTH123
    left_open.write("flushed")
    globals()["kept"] = left_open
    atexit.register(lambda: Path(f"{folder}/atexit-{rank}").write_text("ran"))

    def write_late() -> None:
        time.sleep(0.3)
        Path(f"{folder}/thread-{rank}").write_text("waited for")

    threading.Thread(target=write_late).start()
    return {
        "typed": typed,
        "session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "threads": torch.get_num_threads(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "cwd": str(Path.cwd()),
        "argv": list(sys.argv),
        "main": sys.modules["__main__"].__dict__.get("__file__"),
        "backend": dist.get_backend(),
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "cuda": torch.cuda.is_initialized(),
        "default device": str(torch.get_default_device()),
        "parent": os.getppid(),
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    from nb_accelerate.notebook import notebook_launcher
    from nb_accelerate.ui.views import Recorder

    folder = tmp_path_factory.mktemp("ranks")
    before = (kernel_environment(), signal.getsignal(signal.SIGINT))
    run = notebook_launcher(facts, (str(folder),), 2, hardware="cpu", view=Recorder())
    after = (kernel_environment(), signal.getsignal(signal.SIGINT))
    return {"values": list(run.values), "folder": folder, "before": before, "after": after}


def all_of(seen: dict, name: str) -> set[object]:
    return {value[name] for value in seen["values"]}


def test_standard_input_is_empty_rather_than_a_wait_for_ever(seen):
    assert all_of(seen, "typed") == {"nothing to read"}


def test_each_rank_leads_a_session_of_its_own(seen):
    assert all_of(seen, "session") == {True}


def test_threads_are_shared_out_over_the_ranks(seen):
    assert all_of(seen, "threads") == {max(1, len(os.sched_getaffinity(0)) // 2)}


def test_torchruns_environment_is_complete(seen):
    for rank, value in enumerate(seen["values"]):
        environment = value["environment"]
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "2"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert int(environment["MASTER_PORT"]) > 1023


def test_path_and_directory_are_the_launchers(seen):
    for value in seen["values"]:
        assert value["path"] == [str(entry) for entry in sys.path]
        assert value["cwd"] == str(Path.cwd())


def test_main_is_a_clean_module_so_that_children_do_not_run_ours_again(seen):
    assert all_of(seen, "main") == {None}


def test_the_group_is_there_before_the_function(seen):
    assert all_of(seen, "backend") == {"gloo"}


def test_signals_and_devices_are_as_in_a_fresh_process(seen):
    assert all_of(seen, "sigterm") == {True}
    assert all_of(seen, "cuda") == {False}
    assert all_of(seen, "default device") == {"cpu"}


def test_nothing_in_the_launching_process_is_changed(seen):
    assert seen["before"] == seen["after"]


@pytest.mark.parametrize("name", ["open", "atexit", "thread"])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_normal_exit_does_is_done(seen, name: str, rank: int):
    wanted = {"open": "flushed", "atexit": "ran", "thread": "waited for"}
    assert (seen["folder"] / f"{name}-{rank}").read_text() == wanted[name]


def test_code_that_makes_its_own_group_gets_it(launch):
    def own() -> tuple[int, int]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        world_size = dist.get_world_size()
        dist.destroy_process_group()
        return world_size, int(total)

    assert launch(own).values == [(2, 2), (2, 2)]


def test_the_newest_source_runs_even_if_it_was_edited_within_the_second(
    launch, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    module = tmp_path / "edited_soon.py"

    def answer() -> int:
        import edited_soon

        return edited_soon.ANSWER

    for number in (1, 2, 3):
        module.write_text(f"ANSWER = {number}\n")
        compiled = Path(py_compile.compile(str(module)))  # as an import in the kernel would
        module.write_text(f"ANSWER = {number + 6}\n")
        _pretend_same_second(module, compiled)
        assert launch(answer).values == [number + 6] * 2


def _pretend_same_second(module: Path, compiled: Path) -> None:
    """Let the source be a little younger than the compiled file, which says it is of its second."""
    younger = compiled.stat().st_mtime_ns + 1_000_000
    os.utime(module, ns=(younger, younger))
    header = int(younger // 1_000_000_000).to_bytes(4, "little")
    size = module.stat().st_size.to_bytes(4, "little")
    data, before = compiled.read_bytes(), compiled.stat()
    compiled.write_bytes(data[:8] + header + size + data[16:])
    os.utime(compiled, ns=(before.st_atime_ns, before.st_mtime_ns))
