"""The kernel's hold on its template process, and the spare ranks made ahead."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nb_accelerate.channel import Channel
from nb_accelerate.errors import StartError
from nb_accelerate.launch.crew import Crew, open_ends, open_listener, open_scratch
from nb_accelerate.launch.environment import (
    import_time_settings,
    kernel_environment,
    rank_environment,
    with_rendezvous,
)
from nb_accelerate.messages import Needed, Retire, StartRanks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nb_accelerate.plan import Seat

__all__ = ["Template", "template_of_this_kernel"]

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from nb_accelerate.worker.template import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_LEAVE_SECONDS = 5.0

# The seats, and their environments less where the ranks meet.
_Request = tuple[tuple["Seat", ...], tuple[dict[str, str], ...]]


class Template:
    """Starts a template process when it is first needed, and again when it is out of date.

    Its methods may be called from several threads: runs in the background end in theirs.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._signature: object = None
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the template
        weakref.finalize(self, self._complaints.close)
        self._spare: tuple[_Request, Crew] | None = None
        self._last: _Request | None = None
        self._newest: Crew | None = None
        self._retired: list[tuple[subprocess.Popen[bytes], Channel]] = []

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that run: its own, and those that end with their last run."""
        retired = (process.pid for process, _ in self._retired if process.poll() is None)
        return (*retired, *filter(None, [self.pid]))

    def warm_up(self) -> None:
        """Start it, if need be; returns at once, long before torch is imported there."""
        with self._lock:
            self._refresh(kernel_environment())

    def crew(self, seats: tuple[Seat, ...], port: int = 0) -> Crew:
        """Fresh ranks: those made ahead if they fit, else new ones."""
        with self._lock:
            self._newest = self._crew(seats, port)
            return self._newest

    def _crew(self, seats: tuple[Seat, ...], port: int) -> Crew:
        self._bury()
        was_there = self.pid is not None
        base = kernel_environment()
        self._refresh(base)
        request = self._last = _request(seats, base)
        if not port and (crew := self._spare_for(request)):
            return crew
        try:
            return self._start(request, port)
        except StartError:
            if not was_there:
                raise
            self.stop()  # it was ended since the last launch, by someone or for lack of memory
            self._refresh(base)
            return self._start(request, port)

    def expect(self, seats: tuple[Seat, ...]) -> None:
        """Before the first launch: have ranks made ahead for one that will probably come."""
        with self._lock:
            if self.pid is None or self._last is not None or not seats:
                return
            self._last = _request(seats, kernel_environment())
            self._make_ahead()

    def prepare(self, crew: Crew) -> None:
        """Have ranks for a launch like the one of `crew` made ahead; returns at once.

        Not if another launch has begun since: that one's end is the time for it.
        """
        with self._lock:
            self._bury()
            if crew is self._newest and self.pid is not None:
                self._make_ahead()

    def _make_ahead(self) -> None:
        if self._spare is None and self._last is not None:
            with suppress(StartError):  # it was ended meanwhile: the next launch starts another
                self._spare = self._last, self._start(self._last, ahead=True)

    def obituary(self) -> StartError:
        """Why no ranks could be started."""
        self._complaints.seek(0)
        said = self._complaints.read()[-2000:].decode(errors="replace").strip()
        return StartError(
            f"The template process, which starts the workers, has ended (status {self.ending()}). "
            f"It said:\n{said or '(nothing)'}"
        )

    def ending(self) -> int | None:
        """How it ended, as `Popen.returncode` says it; waits a moment for that."""
        if self._process is None:
            return None
        try:
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End it, its spare ranks and all that still runs; bounded in time."""
        with self._lock:
            self._drop_spare()
            if self._process is not None and self._control is not None:
                self._retired.append((self._process, self._control))
            self._process = self._control = self._last = None
            for process, control in self._retired:
                control.close()
                _wait_for(process)
            self._retired.clear()

    def _refresh(self, environment: Mapping[str, str]) -> None:
        signature = _signature(environment)
        if self.pid is not None and self._signature == signature:
            return
        self._retire()
        self._signature = signature
        self._control, theirs = Channel.pair()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), _path()],
            stdin=subprocess.DEVNULL,
            stdout=self._complaints,
            stderr=self._complaints,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def _retire(self) -> None:
        """Let the process go when its last run has ended: a run in the background may need it."""
        self._drop_spare()
        if self._process is not None and self._control is not None:
            with suppress(OSError):
                self._control.send(Retire())
            self._retired.append((self._process, self._control))
        self._process = self._control = None

    def _bury(self) -> None:
        """Wait for retired processes that have ended, so that they are no zombies."""
        for process, control in [r for r in self._retired if r[0].poll() is not None]:
            control.close()
            self._retired.remove((process, control))

    def _spare_for(self, request: _Request) -> Crew | None:
        """The ranks made ahead, if they are as `request` wants them."""
        if self._spare is not None and self._spare[0] == request and _is_alive(self._spare[1]):
            crew, self._spare = self._spare[1], None
            if not crew.channels[0].has_news():
                self._hurry()
            return crew
        self._drop_spare()
        return None

    def _hurry(self) -> None:
        if self._control is not None:
            with suppress(OSError):  # it has gone, which the crew's lease tells
                self._control.send(Needed())

    def _drop_spare(self) -> None:
        if self._spare is not None:
            _discard(self._spare[1])
            self._spare = None

    def _start(self, wanted: _Request, port: int = 0, *, ahead: bool = False) -> Crew:
        seats, environments = wanted
        run_id = secrets.token_hex(8)
        listener, rendezvous = open_listener(port)
        ends = [open_ends() for _ in seats]
        lease, lease_end = Channel.pair()
        scratch = open_scratch(run_id)
        request = StartRanks(
            seats,
            tuple(with_rendezvous(e, rendezvous, run_id) for e in environments),
            rendezvous,
            run_id,
            scratch,
            ahead,
        )
        crew = Crew(
            seats,
            tuple(e.channel for e in ends),
            tuple(e.output for e in ends),
            lease,
            scratch,
        )
        try:
            self._send(
                request,
                [d for e in ends for d in e.descriptors()]
                + [lease_end.fileno(), listener.fileno()],
            )
        except OSError as error:
            _discard(crew)
            raise self.obituary() from error
        finally:
            for end in ends:
                end.close_theirs()
            lease_end.close()
            listener.close()
        return crew

    def _send(self, request: StartRanks, descriptors: list[int]) -> None:
        if self._control is None:
            raise BrokenPipeError
        self._control.send(request, descriptors)


def template_of_this_kernel() -> Template:
    """The one template of this process; a forked copy of the kernel gets one of its own."""
    return _template_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _template_of(_pid: int) -> Template:
    return Template()


def _request(seats: tuple[Seat, ...], base: Mapping[str, str]) -> _Request:
    return seats, tuple(rank_environment(base, seat) for seat in seats)


def _path() -> str:
    return json.dumps([str(entry) for entry in sys.path])


def _signature(environment: Mapping[str, str]) -> object:
    """What a running template depends on: installed code and import-time settings."""
    return (_age_of("torch"), _age_of("nb_accelerate"), import_time_settings(environment))


def _age_of(package: str) -> tuple[float, ...]:
    """When the package, or anything installed beside it, last changed."""
    folder = _folder_of(package)
    folders = [folder, folder.parent] if folder.parent.name.endswith("-packages") else [folder]
    return tuple(f.stat().st_mtime for f in folders)


@functools.cache
def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise StartError(f"{package} cannot be imported by {sys.executable}. Install it there.")
    return Path(spec.origin).parent


def _discard(crew: Crew) -> None:
    """Let go of ranks that nobody needs; their template may be gone, so remove their folder."""
    crew.close()
    shutil.rmtree(crew.scratch, ignore_errors=True)


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_alive(crew: Crew) -> bool:
    """Whether ranks made ahead still stand by."""
    return not any(channel.is_abandoned() for channel in (*crew.channels, crew.lease))
