"""Ranks that are the kernel's own children: the start methods "fork" and "spawn".

A thread of the kernel does for them what the template does for its ranks: it passes signals on,
tells of their ends, and kills what is left when the run lets go.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from nb_accelerate import payload
from nb_accelerate.channel import Channel
from nb_accelerate.errors import PlanError
from nb_accelerate.launch.crew import Crew, RankEnds, open_ends, open_listener, open_scratch
from nb_accelerate.launch.environment import kernel_environment, rank_environment, with_rendezvous
from nb_accelerate.launch.groups import signal_group
from nb_accelerate.messages import RankEnded, RanksStarted, SignalRanks, TakeSeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from nb_accelerate.plan import Seat

__all__ = ["fork_crew", "spawn_crew"]

_POLL_SECONDS = 0.02
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from nb_accelerate.worker.__main__ import main; main()"
)


def spawn_crew(seats: tuple[Seat, ...], port: int = 0) -> Crew:
    """Fresh interpreters, which import torch first."""
    return _start(seats, port, _spawn)


def fork_crew(seats: tuple[Seat, ...], call: object, port: int = 0) -> Crew:
    """Copies of the kernel as it is, for what cannot be pickled.

    Raises:
        PlanError: the kernel holds a device, which no fork can share.
    """
    if device := _device_in_use():
        raise PlanError(
            f"start_method='fork' copies this kernel, but {device} is already initialised in it "
            "and cannot be used in a copy. Use the default start method, or restart the kernel and "
            "launch before anything touches the device."
        )

    payload.track_classes()

    def fork(seat: Seat, ends: RankEnds, environment: dict[str, str], meeting: _Meeting) -> int:
        pid = os.fork()
        if pid == 0:
            _become_rank(seat, ends, environment, meeting, call)
        return pid

    return _start(seats, port, fork)


class _Meeting:
    """What the ranks of a run share.

    Attributes:
        ends: each rank's connections.
        lease: the kernel's end of the lease.
        listener: where the store listens, which rank 0 serves.
        scratch: a folder.
    """

    def __init__(self, run_id: str, port: int, ends: list[RankEnds], lease: Channel) -> None:
        self.ends = ends
        self.lease = lease
        self.listener, self.rendezvous = open_listener(port)
        self.scratch = open_scratch(run_id)


def _start(
    seats: tuple[Seat, ...],
    port: int,
    start: Callable[[Seat, RankEnds, dict[str, str], _Meeting], int],
) -> Crew:
    run_id = secrets.token_hex(8)
    base = kernel_environment()
    ends = [open_ends() for _ in seats]
    lease, lease_end = Channel.pair()
    meeting = _Meeting(run_id, port, ends, lease)
    pids = [
        start(
            seat,
            end,
            with_rendezvous(rank_environment(base, seat), meeting.rendezvous, run_id),
            meeting,
        )
        for seat, end in zip(seats, ends, strict=True)
    ]
    for end in ends:
        end.close_theirs()
    meeting.listener.close()
    _Guardian(Channel(lease_end), pids, meeting.scratch).start()
    return Crew(
        seats,
        tuple(e.channel for e in ends),
        tuple(e.output for e in ends),
        lease,
        meeting.scratch,
    )


def _spawn(seat: Seat, ends: RankEnds, environment: dict[str, str], meeting: _Meeting) -> int:
    sock, stdout, stderr = ends.theirs
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT, str(sock.fileno()), json.dumps(sys.path)],
        env=environment,
        stdin=subprocess.DEVNULL,
        pass_fds=[sock.fileno()],
        start_new_session=True,
    )
    process.returncode = 0  # the guardian waits for it; Popen must neither wait nor complain
    listener = [meeting.listener.fileno()] if seat.local_rank == 0 else []
    ends.channel.send(
        TakeSeat(seat, meeting.rendezvous, meeting.scratch), [stdout, stderr, *listener]
    )
    return process.pid


def _become_rank(
    seat: Seat,
    ends: RankEnds,
    environment: dict[str, str],
    meeting: _Meeting,
    call: object,
) -> NoReturn:
    """In the forked copy: stop being a kernel."""
    # This module belongs to the kernel's side; from here on the process is a worker.
    surroundings: Any = importlib.import_module("nb_accelerate.worker.surroundings")
    group: Any = importlib.import_module("nb_accelerate.worker.group")
    rank: Any = importlib.import_module("nb_accelerate.worker.rank")
    surroundings.take_session()
    surroundings.reset_signals()
    surroundings.forget_exit_functions()
    surroundings.forget_missing_places()
    _drop_kernel_ends(meeting, ends)
    sock, stdout, stderr = ends.theirs
    store = (
        group.open_store(meeting.rendezvous, meeting.listener.fileno())
        if seat.local_rank == 0
        else None
    )
    station = rank.Station(
        seat=seat,
        environment=environment,
        rendezvous=meeting.rendezvous,
        stdout=stdout,
        stderr=stderr,
        scratch=meeting.scratch,
        call=call,
        keepsake=store,
    )
    rank.serve(Channel(sock), station)
    os._exit(1)


def _drop_kernel_ends(meeting: _Meeting, mine: RankEnds) -> None:
    """Else no rank would see the kernel's end: its siblings would hold the connections open."""
    meeting.lease.close()
    for ends in meeting.ends:
        ends.channel.close()
        for descriptor in ends.output:
            os.close(descriptor)
        if ends is not mine:
            ends.close_theirs()


def _device_in_use() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA"
    xla = sys.modules.get("torch_xla")
    if xla is not None and xla._XLAC._xla_runtime_is_initialized():  # noqa: SLF001 - no public one
        return "the XLA runtime"
    return ""


class _Guardian(threading.Thread):
    """The parent's duties for ranks that are the kernel's children."""

    def __init__(self, lease: Channel, pids: list[int], scratch: str) -> None:
        super().__init__(name="nb_accelerate-guardian", daemon=True)
        self._scratch = scratch
        self._lease = lease
        self._local_ranks = {pid: local_rank for local_rank, pid in enumerate(pids)}
        self._lease.send(RanksStarted(tuple(pids)))

    def run(self) -> None:
        """Until the last child is gone."""
        while self._local_ranks:
            self._serve()
            for pid in list(self._local_ranks):
                self._look_after(pid)
            time.sleep(_POLL_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._lease.close()

    def _serve(self) -> None:
        for message, _ in self._lease.available():
            if isinstance(message, SignalRanks):
                self._signal(message)
        if self._lease.at_end:
            for pid in self._local_ranks:
                signal_group(pid, signal.SIGKILL)

    def _signal(self, message: SignalRanks) -> None:
        for pid, local_rank in self._local_ranks.items():
            if local_rank in message.local_ranks:
                if message.whole_group:
                    signal_group(pid, message.signal)
                else:
                    os.kill(pid, message.signal)

    def _look_after(self, pid: int) -> None:
        if not _has_ended(pid):
            return
        # While it is not reaped, its number cannot become another group's.
        signal_group(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        local_rank = self._local_ranks.pop(pid)
        try:
            self._lease.send(
                RankEnded(local_rank, status, time.monotonic(), usage.ru_maxrss * 1024)
            )
        except OSError:
            return  # the run has let go


def _has_ended(pid: int) -> bool:
    if not hasattr(os, "waitid"):
        return _is_zombie(pid)
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _is_zombie(pid: int) -> bool:
    import psutil

    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
