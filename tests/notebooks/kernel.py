"""A real kernel, driven the way a notebook drives it, and what it has started.

Everything happens in the test's own thread: while a test waits for something, the kernel's
messages are taken in, each with the moment of its arrival.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import re
import shutil
import signal
import tempfile
import textwrap
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Cell", "CellError", "Kernel", "KernelGone", "Piece", "Witness"]

REPOSITORY = Path(__file__).parents[2]

# Inherited by all that a kernel starts, so that orphans are found wherever they ended up.
TOKEN = "NB_ACCELERATE_TEST_TOKEN"

WITNESS = '''
"""Lets a test know which processes there were: importable in cells and in ranks."""
import json, os, psutil


def here(name="rank"):
    """Take down this process, in one write."""
    line = json.dumps([name, os.getpid(), psutil.Process().create_time()]) + "\\n"
    file = os.open(os.path.join(os.path.dirname(__file__), "witnesses"),
                   os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
'''

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PUMP_SECONDS = 0.05


class KernelGone(Exception):
    """The kernel's process has ended while its answer was waited for."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that arrived for a cell."""

    stream: str
    text: str
    time: float
    """Of its arrival, as time.time() has it: the clock that ranks can print."""


@dataclass(frozen=True, slots=True)
class CellError:
    """What a failed cell shows."""

    name: str
    text: str
    traceback: str
    """Without colours."""

    def __str__(self) -> str:
        return self.traceback


@dataclass(slots=True)
class Cell:
    """One cell's execution; it may hear more after it has ended, from a run in the background."""

    request: str
    began: float
    number: int = 0
    pieces: list[Piece] = field(default_factory=list)
    displays: list[dict[str, str]] = field(default_factory=list)
    """Bundles (mime type → data) of displays, updates and the result, in order."""
    error: CellError | None = None
    is_idle: bool = False
    answer: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        """Both its output and its reply are complete."""
        return self.is_idle and bool(self.answer)

    @property
    def label(self) -> str:
        """What errors call it."""
        return f"Cell In[{self.number}]"

    @property
    def text(self) -> str:
        """All that was printed."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def shown(self) -> str:
        """All that was printed or displayed, as text."""
        return "\n".join([self.text, *(d.get("text/plain", "") for d in self.displays)])

    def arrival(self, text: str) -> float:
        """When the first piece that holds `text` arrived."""
        for piece in self.pieces:
            if text in piece.text:
                return piece.time
        raise AssertionError(f"{text!r} has not arrived; there is {self.text!r}")


@dataclass(frozen=True, slots=True)
class Witness:
    """A process that called `witness.here()`."""

    name: str
    pid: int
    created: float

    @property
    def is_alive(self) -> bool:
        """It still runs, or waits for its parent to notice that it does not."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 0.05
            return same and not _is_inits_business(process)
        except psutil.NoSuchProcess:
            return False


class Kernel:
    """A context manager: one kernel with directories of its own, in a folder of its own.

    Attributes:
        folder: the kernel's working directory.
        temporary: what its processes take for /tmp.
    """

    def __init__(self, **environment: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="nb-")
        home = Path(self._home.name)
        self.folder = home / "work"
        self.temporary = home / "tmp"
        for folder in (self.folder, self.temporary, home / "ipython", home / "jupyter"):
            folder.mkdir()
        (self.folder / "witness.py").write_text(WITNESS)
        self._token = uuid.uuid4().hex
        # PYTHONUNBUFFERED and PYTHONDONTWRITEBYTECODE, which containers like to set, hide faults.
        around = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self._environment = around | self._own_environment(home) | environment
        # Unix sockets: no port that another kernel could take between the choice and the use.
        self._manager = KernelManager(
            kernel_name="python3", transport="ipc", connection_file=str(home / "kernel.json")
        )
        self._client = self._manager.blocking_client()
        self._cells: dict[str, Cell] = {}
        self._displays: dict[str, Cell] = {}

    def _own_environment(self, home: Path) -> dict[str, str]:
        return {
            TOKEN: self._token,
            "PYTHONPATH": str(REPOSITORY),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(home / "jupyter"),
            "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
            "XDG_STATE_HOME": str(home / "state"),
            "TMPDIR": str(self.temporary),
        }

    # ------------------------------------------------------------ its life
    def __enter__(self) -> Self:
        self._manager.start_kernel(env=self._environment, cwd=str(self.folder))
        self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        for process in self.processes():
            _kill(process)
        self._home.cleanup()

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        """The kernel's process."""
        provisioner: Any = self._manager.provisioner
        return int(provisioner.pid)

    @property
    def is_alive(self) -> bool:
        """The kernel's process runs."""
        return bool(self._manager.is_alive())

    def interrupt(self) -> None:
        """What the ■ button does."""
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """End the kernel's process without a word."""
        os.kill(self.pid, signal.SIGKILL)

    def restart(self, *, politely: bool = True) -> None:
        """What "Restart kernel" does."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=not politely)
        self._cells.clear()
        self._connect()

    def shut_down(self) -> None:
        """What closing the notebook does, politely."""
        self._manager.shutdown_kernel(now=False)

    # ------------------------------------------------------------ cells
    @property
    def is_busy(self) -> bool:
        """A cell has not ended."""
        return not all(cell.is_done for cell in self._cells.values())

    def start(self, code: str, *, expressions: Mapping[str, str] | None = None) -> Cell:
        """Send a cell; it runs while the test does something else."""
        request = self._client.execute(
            textwrap.dedent(code).strip("\n"), user_expressions=dict(expressions or {})
        )
        cell = Cell(request, time.time())
        self._cells[request] = cell
        return cell

    def finish(self, cell: Cell, seconds: float = 60) -> Cell:
        """Wait for a cell's end, whichever it is."""
        self.until(lambda: cell.is_done, seconds, lambda: f"the cell's end; so far:\n{cell.shown}")
        return cell

    def forget(self, cell: Cell) -> None:
        """Expect no answer to it."""
        self._cells.pop(cell.request, None)

    def run(self, code: str, seconds: float = 60) -> Cell:
        """Run a cell that has to succeed."""
        return self.succeeded(self.start(code), seconds)

    def succeeded(self, cell: Cell, seconds: float = 60) -> Cell:
        """Wait for the end of a cell that has to succeed."""
        self.finish(cell, seconds)
        assert cell.error is None, f"{cell.text}\n{cell.error}"
        return cell

    def fails(self, code: str, seconds: float = 60) -> CellError:
        """Run a cell that has to fail; what it then shows."""
        return self.failed(self.start(code), seconds)

    def failed(self, cell: Cell, seconds: float = 60) -> CellError:
        """Wait for the end of a cell that has to fail."""
        self.finish(cell, seconds)
        if cell.error is None and cell.text.rstrip().endswith("\nKeyboardInterrupt"):
            # A second interrupt has met IPython while it was showing the first.
            cell.error = CellError("KeyboardInterrupt", "", cell.text)
        assert cell.error is not None, f"The cell has succeeded:\n{cell.shown}"
        return cell.error

    def ask(self, expression: str, seconds: float = 30) -> Any:
        """The value of an expression in the kernel, by way of JSON."""
        wanted = f"__import__('json').dumps(({expression}))"
        cell = self.finish(self.start("", expressions={"it": wanted}), seconds)
        told = cell.answer["user_expressions"]["it"]
        assert told["status"] == "ok", f"{expression}: {told}"
        return json.loads(ast.literal_eval(told["data"]["text/plain"]))

    def until(
        self,
        condition: Callable[[], bool],
        seconds: float,
        what: Callable[[], str] | str = "the condition",
    ) -> None:
        """Take in messages until `condition` holds; at most so many seconds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                told = what if isinstance(what, str) else what()
                raise AssertionError(f"After {seconds} s still no sign of {told}")
            self._pump()

    def listen(self, seconds: float) -> None:
        """Take in messages for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._pump()

    def _pump(self) -> None:
        try:
            self._hear(self._client.get_iopub_msg(timeout=_PUMP_SECONDS))
        except queue.Empty:
            self._take_replies()
            if not self.is_alive:
                raise KernelGone from None

    def _take_replies(self) -> None:
        while self._client.shell_channel.msg_ready():
            reply = self._client.get_shell_msg(timeout=1)
            cell = self._cells.get(reply["parent_header"].get("msg_id", ""))
            if cell is not None:
                cell.answer = reply["content"]
                cell.seconds = time.time() - cell.began

    def _hear(self, message: dict[str, Any]) -> None:
        request = message["parent_header"].get("msg_id", "")
        # Some belong to no cell of ours: those of a kernel's start, for one.
        cell = self._cells.get(request) or Cell(request, time.time())
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                cell.pieces.append(Piece(content["name"], content["text"], time.time()))
            case "display_data" | "execute_result":
                cell.displays.append(content["data"])
                if name := content.get("transient", {}).get("display_id"):
                    self._displays[name] = cell
            case "update_display_data":
                # It goes where its display is, whichever cell is running.
                cell = self._displays.get(content["transient"]["display_id"], cell)
                cell.displays.append(content["data"])
            case "error":
                trace = _COLOURS.sub("", "\n".join(content["traceback"]))
                cell.error = CellError(content["ename"], content["evalue"], trace)
            case "execute_input":
                cell.number = content["execution_count"]
            case "status" if content["execution_state"] == "idle":
                cell.is_idle = True
                self._take_replies()

    # ------------------------------------------------------------ processes
    def witnesses(self, count: int = 0, seconds: float = 30) -> list[Witness]:
        """The processes that called `witness.here()`, once there are `count` of them."""
        self.until(lambda: len(self._testimony()) >= count, seconds, f"{count} witnesses")
        return self._testimony()

    def forget_witnesses(self) -> None:
        """Begin a new list."""
        (self.folder / "witnesses").unlink(missing_ok=True)

    def _testimony(self) -> list[Witness]:
        path = self.folder / "witnesses"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Witness(*json.loads(line)) for line in lines]

    def processes(self) -> list[psutil.Process]:
        """All that this kernel has started, also what has lost its parent since."""
        badge = f"{TOKEN}={self._token}".encode()
        kernel = self.pid if self._manager.has_kernel else None
        return [
            process
            for process in psutil.process_iter()
            if process.pid != kernel and badge in _environment_of(process)
        ]

    def template(self) -> psutil.Process | None:
        """The template of this kernel, when there is one."""
        own = psutil.Process(self.pid).children()
        return next((child for child in own if _is_template(child)), None)

    def strays(self, spares: int = 3) -> list[str]:
        """What is there that should not be between two launches.

        Args:
            spares: how many ranks the template may have made ahead.
        """
        template = self.template()
        idle = template.children() if template else []
        kept = {p.pid for p in idle} | ({template.pid} if template else set())
        found = [p for p in self.processes() if p.pid not in kept]
        if len(idle) > 1 + spares:
            found += idle
        return [told for process in found if (told := _described(process))]

    def expect_no_strays(self, seconds: float = 3, spares: int = 3) -> None:
        """Nothing of the runs so far remains, after a moment."""
        self._expect_gone(lambda: self.strays(spares), seconds)

    def expect_nothing_left(
        self, seconds: float, but: Sequence[int] = (), *, folders: bool = True
    ) -> None:
        """Nothing that this kernel has ever started remains, the template included.

        Args:
            seconds: when.
            but: process ids that may.
            folders: whether somebody was left to remove the run's folder.
        """

        def left() -> list[str]:
            found = [p for p in self.processes() if p.pid not in but]
            return [told for process in found if (told := _described(process))]

        self._expect_gone(left, seconds)
        if folders:
            self._expect_gone(
                lambda: [path.name for path in self.temporary.glob("nb_accelerate-*")], 1
            )

    def expect_all_gone(self, seconds: float) -> None:
        """No witness remains."""
        self._expect_gone(lambda: [str(w) for w in self._testimony() if w.is_alive], seconds)

    def expect_no_temporary_files(self, seconds: float = 2) -> None:
        """The runs so far have left nothing in their /tmp but the next one's folder."""
        try:
            self._expect_gone(self._temporary_files, seconds)
        except AssertionError:
            for name in self._temporary_files():  # the next test is not to be blamed
                path = self.temporary / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise

    def _temporary_files(self) -> list[str]:
        left = sorted(path.name for path in self.temporary.iterdir() if not _is_torchs(path))
        ahead = [name for name in left if name.startswith("nb_accelerate-")]
        return left if len(ahead) != 1 else [name for name in left if name not in ahead]

    @staticmethod
    def _expect_gone(look: Callable[[], list[str]], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (found := look()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not found, f"After {seconds} s there still is:\n" + "\n".join(found)


def _is_torchs(path: Path) -> bool:
    """A cache for compiled code, which stays for good, or what a loader tries its /tmp with.

    The latter are empty files, left when a signal meets a rank just there.
    """
    if re.fullmatch(r"(tmp)?[a-z0-9_]{8}", path.name) and path.is_file():
        return path.stat().st_size == 0
    return path.name.startswith("torchinductor_")


def _environment_of(process: psutil.Process) -> list[bytes]:
    """What the process was started with; a fork's is its parent's."""
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_template(process: psutil.Process) -> bool:
    try:
        return any("nb_accelerate.worker.template" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _is_inits_business(process: psutil.Process) -> bool:
    """Whether it has ended, and so has its parent: the system cleans up, sooner or later."""
    return process.status() == psutil.STATUS_ZOMBIE and process.ppid() <= 1


def _described(process: psutil.Process) -> str:
    try:
        if _is_inits_business(process):
            return ""
        command = " ".join(process.cmdline())[-120:]
        return f"{process.pid} (of {process.ppid()}), {process.status()}: {command}"
    except psutil.NoSuchProcess:
        return ""


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
