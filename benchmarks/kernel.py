"""A real kernel, driven over its sockets as a front end drives it."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from benchmarks.peers import Peer

__all__ = ["Cell", "CellFailed", "Kernel"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ANSWER = "@@answer "
_MARK = "NB_BENCHMARK"
_PATIENCE_SECONDS = 120.0
# One for all kernels: they are those of a user who has launched before.
_STATE = tempfile.TemporaryDirectory(prefix="nb-benchmark-state-")

_PRELUDE = f"""
import json, os, resource, time
def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
def answer(**values):
    print({_ANSWER!r} + json.dumps(values), flush=True)
def tell(**values):
    import json, os, torch.distributed as dist
    with open(f"rank{{dist.get_rank()}}.tmp", "w") as file:
        json.dump(values, file)
    os.replace(f"rank{{dist.get_rank()}}.tmp", f"rank{{dist.get_rank()}}.json")
def told(num_ranks):
    names = [f"rank{{rank}}.json" for rank in range(num_ranks)]
    values = [json.load(open(name)) for name in names]
    for name in names:
        os.remove(name)
    return values
"""


class CellFailed(Exception):
    """A cell raised, or did not end in time."""


@dataclass(slots=True)
class Cell:
    """What came of a cell. Times are those of `time.monotonic()` here, at arrival."""

    sent: float
    idle: float | None = None
    """None: it did not end in time."""
    error_at: float | None = None
    error: str = ""
    """The exception's value, then its traceback."""
    heard: list[tuple[float, str]] = field(default_factory=list)
    """What it put out: arrival, and the message's content as JSON."""
    printed: str = ""


class Kernel:
    """A kernel in a folder of its own, where a peer has been set up.

    All that it starts inherits a mark in its environment, so `close` finds it, and nothing else.
    """

    def __init__(self, peer: Peer | None = None, *, prepared: bool = True) -> None:
        self.is_lost = False
        """A cell did not end in time, and goes on."""
        self.folder = Path(tempfile.mkdtemp(prefix="nb-benchmark-"))
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        self._manager = KernelManager()
        self._manager._kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="benchmark",
            language="python",
        )
        self._manager.start_kernel(
            env=self._environment(),
            cwd=str(self.folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        self.ask(_PRELUDE + "answer()")
        if peer is not None and prepared:
            self.ask(f"{peer.setup}\nanswer()")
            self.ask(f"{peer.ready}\nanswer()")

    def run(self, code: str, limit: float = _PATIENCE_SECONDS, *, rest: float = 0.0) -> Cell:
        """Run a cell, for so many seconds at most.

        Args:
            code: the cell.
            limit: seconds.
            rest: seconds before the first message is read, in which this process, the front end,
                takes no core from what is measured within the kernel.
        """
        cell = Cell(time.monotonic())
        request = self._client.execute(code, store_history=False, allow_stdin=False)
        time.sleep(rest)
        while cell.idle is None and (left := cell.sent + limit - time.monotonic()) > 0:
            with suppress(queue.Empty):
                message = self._client.get_iopub_msg(timeout=left)
                _take(cell, message, request)
        return cell

    def ask(
        self, code: str, limit: float = _PATIENCE_SECONDS, *, rest: float = 0.0
    ) -> dict[str, Any]:
        """Run a cell that calls `answer`, and give what it answered.

        Raises:
            CellFailed: it raised, or did not end in time.
        """
        cell = self.run(code, limit, rest=rest)
        if cell.idle is None:
            self.is_lost = True
            raise CellFailed(f"did not end within {limit:.0f} s")
        _, found, text = cell.printed.rpartition(_ANSWER)
        if not found:
            raise CellFailed(" ".join(cell.error.split()) or "no answer")
        answer: dict[str, Any] = json.loads(text.splitlines()[0])
        return answer

    def interrupt(self) -> float:
        """As the front end's stop button does; gives the time at which it did."""
        now = time.monotonic()
        self._manager.interrupt_kernel()
        return now

    def close(self) -> None:
        """End the kernel and whatever it has started."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        for pid in self._marked():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _environment(self) -> dict[str, str]:
        name, _, value = self._mark.partition("=")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
        state = {"XDG_STATE_HOME": _STATE.name, name: value}
        return environment | state | {"PYTHONPATH": str(Path(__file__).parents[1])}

    def _marked(self) -> list[int]:
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if self._mark in _surroundings(p)]


def _surroundings(process: Path) -> str:
    try:
        return (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _take(cell: Cell, message: dict[str, Any], request: str) -> None:
    now, kind, content = time.monotonic(), message["msg_type"], message["content"]
    if kind == "error":
        cell.error_at = now
        trace = _COLOURS.sub("", "\n".join(content["traceback"]))
        cell.error = f"{content['ename']}: {content['evalue']}\n{trace}"
    elif kind != "status":
        cell.heard.append((now, json.dumps(content, default=str)))
        cell.printed += content.get("text", "") if kind == "stream" else ""
    elif content["execution_state"] == "idle" and message["parent_header"]["msg_id"] == request:
        cell.idle = now
