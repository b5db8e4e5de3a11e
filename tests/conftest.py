"""What holds for every test: its marker and its time limit by folder, a home of its own, and that
nothing outlives it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TESTS = Path(__file__).parent

MARKERS = {"processes": "processes", "notebooks": "notebook", "faults": "faults"}

TIME_LIMITS_SECONDS = {
    "unit": 20,
    "house": 60,
    "training": 120,
    "processes": 90,
    "notebooks": 300,
    "faults": 1500,
}

POLICED = {"training", "processes", "notebooks"}

# Every process of this test session carries it, so that orphans are found wherever they ended up.
BADGE = "NB_ACCELERATE_TEST_SESSION"

SETTLE_SECONDS = 3.0

# Its keeper of stores, and the idle ranks that wait for the next launch.
MOST_KEPT_BY_A_TEMPLATE = 9


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a home of its own before any test module imports anything."""
    home = tempfile.TemporaryDirectory(prefix="nb_accelerate-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(home.cleanup)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv(BADGE, uuid.uuid4().hex)
    patch.setenv("XDG_STATE_HOME", f"{home.name}/state")  # run folders
    patch.setenv("IPYTHONDIR", f"{home.name}/ipython")  # a kernel without the user's own start-up


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set markers and time limits by folder."""
    for item in items:
        folder = folder_of(item)
        if folder in MARKERS:
            item.add_marker(MARKERS[folder])
        if folder in TIME_LIMITS_SECONDS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMITS_SECONDS[folder]))
        if item.get_closest_marker("gpu") and not Path("/proc/driver/nvidia/version").exists():
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))


def folder_of(item: pytest.Item) -> str:
    """The folder of tests/ that a test lies in, such as "unit"."""
    return item.path.relative_to(TESTS).parts[0]


# ---------------------------------------------------------------- police
@pytest.fixture(autouse=True)
def police(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing that a test started outlives it by more than some seconds."""
    if folder_of(request.node) not in POLICED:
        yield
        return
    before = Surroundings.now()
    yield
    leaks = settled(lambda: before.leaks(Surroundings.now()))
    if leaks:
        pytest.fail("The test has left behind:\n  " + "\n  ".join(leaks), pytrace=False)


def settled(leaks: Callable[[], list[str]]) -> list[str]:
    """What is still there after a fair time to leave."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (found := leaks()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a test might leave behind, at one moment."""

    threads: frozenset[threading.Thread]
    processes: frozenset[psutil.Process]
    shared_memory: frozenset[str]
    doors: frozenset[str]
    environment: dict[str, str]

    @classmethod
    def now(cls) -> Surroundings:
        """Look around."""
        processes = frozenset(processes_of_session())
        return cls(
            threads=frozenset(threading.enumerate()),
            processes=processes,
            shared_memory=frozenset(shared_memory_files()),
            doors=frozenset(open_doors(processes)),
            environment=environment(),
        )

    def leaks(self, after: Surroundings) -> list[str]:
        """One sentence for each thing that is there `after` and should not be."""
        return [
            *self._threads_left(after),
            *self._processes_left(after),
            *(f"file {name}" for name in after.shared_memory - self.shared_memory if ours(name)),
            *sorted(after.doors - self.doors),
            *changes(self.environment, after.environment),
        ]

    def _threads_left(self, after: Surroundings) -> Iterator[str]:
        for thread in after.threads - self.threads:
            if thread.is_alive() and not thread.daemon:
                yield f"thread {thread.name}, which is no daemon"

    def _processes_left(self, after: Surroundings) -> Iterator[str]:
        for process in after.processes - self.processes:
            if not may_stay(process) and (told := described(process)):
                yield f"process {told}"


# ---------------------------------------------------------------- processes
def processes_of_session() -> Iterator[psutil.Process]:
    """All that this session started, also what has lost its parent since."""
    own = psutil.Process()
    children = set(own.children(recursive=True))
    yield from children
    for process in psutil.process_iter():
        if process != own and process not in children and carries_badge(process):
            yield process


def carries_badge(process: psutil.Process) -> bool:
    """Whether a process was started, directly or not, by this session."""
    badge = f"{BADGE}={os.environ[BADGE]}".encode()
    try:
        return badge in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def may_stay(process: psutil.Process) -> bool:
    """The package's template with what it keeps ready, and Python's own housekeeper."""
    try:
        command = process.cmdline()
        if is_template(command):
            return belongs_to_a_template(process)
        return any("multiprocessing.resource_tracker" in word for word in command)
    except psutil.ZombieProcess:
        return False
    except psutil.NoSuchProcess:
        return True


def is_template(command: Iterable[str]) -> bool:
    """Whether a command line is the template's, or that of a process forked from it."""
    return any("nb_accelerate.worker.template" in word for word in command)


def belongs_to_a_template(process: psutil.Process) -> bool:
    """Whether it is the template of a living kernel, or one of the idle processes it keeps."""
    parent = process.parent()
    if parent is None or process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
        return False
    if not is_template(parent.cmdline()):  # the template itself: its kernel must be there
        return parent.pid == os.getpid() or carries_badge(parent)
    grandparent = parent.parent()
    is_child = grandparent is not None and not is_template(grandparent.cmdline())
    few = len(parent.children()) <= MOST_KEPT_BY_A_TEMPLATE
    return is_child and few and not process.children()


def described(process: psutil.Process) -> str:
    """The process for a person, or "" when it has ended by now."""
    try:
        return f"{process.pid}, {process.status()}: {' '.join(process.cmdline())[:200]}"
    except psutil.ZombieProcess:
        return f"{process.pid}, which has ended and is not waited for"
    except psutil.NoSuchProcess:
        return ""


def open_doors(processes: Iterable[psutil.Process]) -> Iterator[str]:
    """TCP sockets that listen to more than this machine."""
    for process in processes:
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.Error:
            continue
        for connection in connections:
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr.ip not in ("127.0.0.1", "::1"):
                yield f"process {process.pid} listens on {':'.join(map(str, connection.laddr))}"


# ---------------------------------------------------------------- files and environment
def shared_memory_files() -> list[str]:
    """Files in shared memory, by full name."""
    folder = Path("/dev/shm")
    return [str(path) for path in folder.iterdir()] if folder.exists() else []


def ours(name: str) -> bool:
    """Whether the file is this session's; one that nobody holds could be any test session's."""
    session = {process.pid for process in processes_of_session()} | {os.getpid()}
    if any(holds(pid, name) for pid in session):
        return True
    above = {process.pid for process in psutil.Process().parents()}
    strangers = [p for p in psutil.process_iter() if p.pid not in session | above]
    return not any(holds(stranger.pid, name) or runs_tests(stranger) for stranger in strangers)


def runs_tests(process: psutil.Process) -> bool:
    """Whether a process is part of a test session, such as one of another checkout."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(word in command for word in ("pytest", "ipykernel", "nb_accelerate"))


def holds(pid: int, name: str) -> bool:
    """Whether a process has a file open or mapped."""
    try:
        if name in Path(f"/proc/{pid}/maps").read_text():
            return True
        return any(str(link.readlink()) == name for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def environment() -> dict[str, str]:
    """This process's environment, less what pytest and the first import of OpenMP's users set."""
    passing = {"PYTEST_CURRENT_TEST", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
    return {name: value for name, value in os.environ.items() if name not in passing}


def changes(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """What differs between two environments."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"os.environ[{name!r}]: {before.get(name)!r} is now {after.get(name)!r}"


if sys.platform != "linux":
    POLICED.clear()  # /proc is what the police reads
