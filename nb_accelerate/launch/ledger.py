"""The run folder: what a run was asked for, logged, printed and came to, on disk.

    <root>/20260314-150926-train-k3f9/
        spec.json      what was asked for; the kernel's process id
        metrics.jsonl  {"rank": 0, "step": 9, "time": 1.5, "merged": 1, "values": {"loss": 0.5}}
        log.txt        every line of output: "[rank 0] text", "[rank 1 stderr] text"
        outcome.json   written when the run ends; without it the run is under way or was cut off

Files appear when there is something to put into them. A disk that is full or cannot be written to
costs the run its folder and one notice, never the training.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from nb_accelerate.messages import Metrics, Notice, Output
from nb_accelerate.record import LOG_CHARACTERS, Log, MetricTable

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from nb_accelerate.messages import Metric, RunMessage

__all__ = ["Ledger", "PastRun", "drop_old_runs", "list_runs", "newest_run", "tidy_up"]

KEPT_RUNS = 200
SLACK_RUNS = 50
"""So many more may gather before they are dropped together."""
FLUSH_SECONDS = 0.2
BUFFERED_CHARACTERS = 256 * 1024
OPEN_CHARACTERS = 64 * 1024
SYNC_SECONDS = 1.0
"""A run that took longer is worth waiting for the disk, some milliseconds, at its end."""

_FOLDER = re.compile(r"\d{8}-\d{6}-.+-[^-]+")
_LINE = re.compile(r"\[rank (\d+)( stderr)?\] (.*)")


class Ledger:
    """One run's folder, being written. Times are those of `time.monotonic()`; nothing raises.

    Attributes:
        folder: where it lies.
        writing: False once the folder could not be written to.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        token: str,
        spec: Callable[[], Mapping[str, object]],
    ) -> None:
        started = datetime.now().astimezone()
        self.folder = root / f"{started:%Y%m%d-%H%M%S}-{_file_name(name)}-{token}"
        self.writing = True
        self._began = time.monotonic()
        self._log = _Sheet(self.folder / "log.txt")
        self._metrics = _Sheet(self.folder / "metrics.jsonl")
        self._open: dict[str, str] = {}
        self._flushed = 0.0
        self._notice: Notice | None = None
        known = {"name": name, "started": started.isoformat(), "pid": os.getpid()}
        self._known, self._spec = known, spec

    def open(self) -> None:
        """Make the folder; apart from the constructor, so that no rank waits for the disk."""
        with self._giving_up():
            self.folder.mkdir(parents=True)
            (self.folder / "spec.json").write_text(self._asked_for(), encoding="utf-8")

    def _asked_for(self) -> str:
        return _to_json({**self._known, **self._spec(), **self._known})

    def record(self, message: RunMessage) -> None:
        """Take down what the message says; it is on disk after the next `tick` or `close`."""
        if not self.writing:
            return
        if isinstance(message, Output):
            self._take_down(message)
        elif isinstance(message, Metrics):
            for record in message.records:
                self._metrics.add(_metric_line(message.rank, record))
        if self._log.size + self._metrics.size > BUFFERED_CHARACTERS:
            self._flush()

    def tick(self, now: float) -> None:
        """Write what waits, at most five times a second."""
        due = self.deadline()
        if due is not None and now >= due:
            self._flushed = now
            self._flush()

    def deadline(self) -> float | None:
        """When `tick` has something to do; None while nothing waits."""
        waits = self.writing and self._log.size + self._metrics.size
        return self._flushed + FLUSH_SECONDS if waits else None

    def close(self, outcome: Mapping[str, object]) -> None:
        """Write the rest, and what the run came to. `outcome` may hold "ok" and "summary"."""
        if not self.writing:
            return
        seconds = time.monotonic() - self._began
        known = {"ended": datetime.now().astimezone().isoformat(), "seconds": round(seconds, 6)}
        for tag, text in self._open.items():
            self._log.add(f"{tag}{text}\n")
        self._flush()
        with self._giving_up():
            path = self.folder / "outcome.json"
            _write_whole(path, _to_json({**known, **outcome}), sync=seconds > SYNC_SECONDS)
        self._stop()

    def take_notice(self) -> Notice | None:
        """What the user must be told about the folder, once."""
        notice, self._notice = self._notice, None
        return notice

    def _take_down(self, output: Output) -> None:
        tag = f"[rank {output.rank}{' stderr' if output.stream == 'stderr' else ''}] "
        if output.ending == "\r":
            text = self._open.pop(tag, "")  # what was open is overwritten: it stays as it was
            if text:
                self._log.add(f"{tag}{text}\n")
            return
        text = self._open.pop(tag, "") + output.text
        if output.ending or len(text) >= OPEN_CHARACTERS:
            self._log.add(f"{tag}{text}\n")
        else:
            self._open[tag] = text

    def _flush(self) -> None:
        with self._giving_up():
            self._log.flush()
            self._metrics.flush()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._stop()
            why = error.strerror or str(error)
            self._notice = Notice(
                f"The run folder {self.folder} cannot be written ({why}). The training goes on; "
                "its log and metrics are kept in this kernel only.",
                "warning",
            )

    def _stop(self) -> None:
        self.writing = False
        self._log.close()
        self._metrics.close()


class _Sheet:
    """A file that is appended to in few writes, made when there is something to write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._rest = b""
        self._file: io.FileIO | None = None
        self.size = 0
        """Characters that wait."""

    def add(self, line: str) -> None:
        self._lines.append(line)
        self.size += len(line)

    def flush(self) -> None:
        if not (self._lines or self._rest):
            return
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
        self._rest += "".join(self._lines).encode(errors="replace")
        self._lines, self.size = [], 0
        while self._rest:  # kept while it is written: an interrupt may come in between
            self._rest = self._rest[self._file.write(self._rest) :]

    def close(self) -> None:
        self._lines, self.size = [], 0
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


# ---------------------------------------------------------------- reading
@dataclass(frozen=True)
class PastRun:
    """A run as its folder tells it; files are read when they are asked for."""

    folder: Path

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """What was asked for; empty when it cannot be read."""
        return _from_json(self.folder / "spec.json")

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What it came to; empty while it is under way and when it was cut off."""
        return _from_json(self.folder / "outcome.json")

    @property
    def name(self) -> str:
        """The function's."""
        return str(self.spec.get("name", self.folder.name))

    @property
    def started(self) -> datetime:
        """In the time zone of this machine."""
        return datetime.strptime(self.folder.name[:15], "%Y%m%d-%H%M%S").astimezone()

    @property
    def status(self) -> str:
        """One of "ok", "failed", "running" and "cut off": its kernel ended before it did."""
        outcome = self.outcome
        if outcome:
            return "ok" if outcome.get("ok", True) else "failed"
        return "running" if _is_alive(self.spec.get("pid")) else "cut off"

    @property
    def metrics(self) -> MetricTable:
        """Every value that was logged, read anew."""
        table = MetricTable()
        with suppress(OSError), (self.folder / "metrics.jsonl").open("rb") as file:
            for line in file:
                _read_metric(line, table)
        return table

    @property
    def log(self) -> Log:
        """The newest lines that were printed, read anew; all are in `folder`'s log.txt."""
        with suppress(OSError):
            return _read_log(self.folder / "log.txt")
        return Log()

    def __repr__(self) -> str:
        summary = str(self.outcome.get("summary", ""))
        parts = [self.name, f"{self.started:%Y-%m-%d %H:%M:%S}", self.status, summary]
        return " · ".join(filter(None, parts))

    def _repr_html_(self) -> str:
        where = f"<small>{escape(str(self.folder))}</small>"
        head = f"<div><strong>{escape(repr(self))}</strong><br>{where}</div>"
        return f"{head}{self.metrics._repr_html_()}{self.log._repr_html_()}"


def list_runs(root: Path) -> list[PastRun]:
    """The runs whose folders lie in `root`, the newest last; none when there is no such folder."""
    return [PastRun(folder) for folder in _run_folders(root)]


def newest_run(root: Path) -> PastRun | None:
    """The run that was begun last, or one that was begun in the same second."""
    names = _folder_names(root)
    return PastRun(root / max(names)) if names else None


def _run_folders(root: Path) -> list[Path]:
    """Oldest first; of those begun in the same second, the one that was made first."""
    found = []
    for name in _folder_names(root):
        folder = root / name
        with suppress(OSError):  # not a run's, or another kernel is removing it
            found.append((name[:15], (folder / "spec.json").stat().st_mtime_ns, folder))
    return [folder for _, _, folder in sorted(found)]


def _folder_names(root: Path) -> list[str]:
    with suppress(OSError):
        return [name for name in os.listdir(root) if _FOLDER.fullmatch(name)]  # noqa: PTH208 - 10 x
    return []


def tidy_up(root: Path) -> None:
    """Drop old runs once there are many; in a thread, since disks can be slow at removing."""
    if len(_folder_names(root)) > KEPT_RUNS + SLACK_RUNS:
        threading.Thread(
            target=drop_old_runs, args=(root,), name="nb_accelerate-tidy", daemon=True
        ).start()


def drop_old_runs(root: Path, *, keep: int = KEPT_RUNS) -> None:
    """Remove the folders of all but the newest `keep` runs, and of those that still run."""
    for name in sorted(_folder_names(root))[:-keep]:
        run = PastRun(root / name)
        if "pid" in run.spec and run.status != "running":
            shutil.rmtree(run.folder, ignore_errors=True)


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


# ---------------------------------------------------------------- formats
def _file_name(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name).strip("_.")[:40] or "function"


def _to_json(values: Mapping[str, object]) -> str:
    return json.dumps(values, default=str, indent=1, ensure_ascii=False)


def _from_json(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _write_whole(path: Path, text: str, *, sync: bool) -> None:
    """Whoever looks sees nothing or all of it."""
    draft = path.with_suffix(".part")
    with draft.open("wb") as file:
        file.write(text.encode(errors="replace"))
        file.flush()
        if sync:
            os.fsync(file.fileno())
    draft.replace(path)


def _metric_line(rank: int, record: Metric) -> str:
    head = {"rank": rank, "step": record.step, "time": record.time, "merged": record.merged}
    values = ", ".join(f"{json.dumps(k)}: {_number(v)}" for k, v in record.values.items())
    return f'{json.dumps(head)[:-1]}, "values": {{{values}}}}}\n'


def _number(value: float) -> str:
    """JSON knows no nan: null; and no infinity: a number too large for any reader."""
    if math.isfinite(value):
        return repr(float(value))
    if math.isnan(value):
        return "null"
    return "1e999" if value > 0 else "-1e999"


def _read_metric(line: bytes, table: MetricTable) -> None:
    """Skips a line that a dying kernel left unfinished."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        record = json.loads(line)
        values = record["values"].items()
        numbers = {name: math.nan if value is None else value for name, value in values}
        table.add(record["rank"], record["step"], numbers)


def _read_log(path: Path) -> Log:
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - LOG_CHARACTERS)
        log = Log(dropped=_count_lines(file, start))
        if start:
            file.readline()  # its beginning is among what is skipped
        for line in file:
            match = _LINE.fullmatch(line.decode(errors="replace").rstrip("\n"))
            if match:
                log.add(Output(int(match[1]), "stderr" if match[2] else "stdout", match[3]))
    return log


def _count_lines(file: io.BufferedReader, end: int) -> int:
    """Lines that begin in the first `end` bytes; leaves the file there."""
    count, left = 0, end
    while left:
        block = file.read(min(left, 1 << 20))
        if not block:
            break
        count += block.count(b"\n")
        left -= len(block)
    return count + 1 if end else 0
