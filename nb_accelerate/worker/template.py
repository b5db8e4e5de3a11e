"""The template: a clean interpreter with torch imported that forks ranks on request.

    kernel ──control socket──▶ template ──fork──▶ rank, rank, …      (a session each)
       └──a socket per run────────┘└────fork──▶ keeper (rendezvous stores)

It has one Python thread, its own session, computes nothing and touches no device, so a fork of it
carries no broken locks, no lost thread pools and no CUDA state. A run is a lease: its socket
carries signals in and ends out, and when the kernel closes it, the run's ranks are killed. The
template leaves when the control socket ends or its parent changes, and takes everyone along.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import warnings
import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn, cast

from nb_accelerate.channel import Channel
from nb_accelerate.messages import Needed, RankEnded, RanksStarted, Retire, SignalRanks, StartRanks
from nb_accelerate.worker import surroundings
from nb_accelerate.worker.group import thread_pools
from nb_accelerate.worker.keeper import CloseStore, OpenStore, keep_stores
from nb_accelerate.worker.linux import (
    adopt_orphans,
    end_with_parent,
    host_sources,
    large_areas,
    name_process,
    use_large_pages,
)
from nb_accelerate.worker.offspring import (
    children_here,
    environment_names,
    kill,
    next_ended,
    signal_group,
    signal_one,
)
from nb_accelerate.worker.rank import Station, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from nb_accelerate.plan import Seat

__all__ = ["main"]

_PARENT_CHECK_SECONDS = 0.5
_LEISURE_SECONDS = 0.05
_TERM_SECONDS = 1.0
# What every rank needs, before the first request is served.
_FIRST = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "threadpoolctl",
    "nb_accelerate.training",
)
# What making an optimizer pulls in (0.8 s in each rank), when there is nothing else to do.
# In pieces, because a request that comes meanwhile waits for the piece's end.
_LATER = (
    "sympy",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._functorch.aot_autograd",
    "torch._dynamo",
    "torch.optim",
)
# They take a millisecond for lines of a log that nobody has asked for.
_LOGS_AT_EXIT = (
    ("torch._dynamo.utils", "dump_compile_times"),
    ("torch._dynamo.eval_frame", "_log_traced_frames"),
    ("torch._inductor.remote_cache", "dump_cache_stats"),
    ("torch._subclasses.fake_tensor", "dump_cache_stats"),
)


@dataclass
class _Lease:
    """One run's ranks, and the socket by which the kernel holds them."""

    number: int
    run_id: str
    scratch: str
    socket: Channel
    pids: tuple[int, ...] = ()
    living: dict[int, int] = field(default_factory=dict)
    """pid → local rank"""


def main(control: int, kernel: int) -> NoReturn:
    """Serve requests that come by descriptor `control` until process `kernel` is gone."""
    gc.disable()  # looking through all of torch while it is imported takes 0.1 s each time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    name_process("nb-template")
    # BLAS has a thread of its own and mends its locks at a fork; Python 3.12 warns all the same.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    for name in _FIRST:
        importlib.import_module(name)
    thread_pools()
    host_sources()  # looked up once, for all ranks
    _Template(Channel(socket.socket(fileno=control)), kernel).run()


class _Template:
    """The event loop: requests, signals for ranks, ends of ranks."""

    def __init__(self, control: Channel, kernel: int) -> None:
        self._control = control
        self._kernel = kernel
        self._leases: dict[int, _Lease] = {}
        self._numbers = iter(range(1, sys.maxsize))
        self._later = self._chores()
        self._put_off: list[tuple[StartRanks, tuple[int, ...]]] = []
        """Orders for ranks that no call waits for: better forked after the chores."""
        self._is_retired = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._serve_requests)
        self._child_ended = self._watch_children()
        self._keeper, self._keeper_pid = self._fork_keeper()

    # ------------------------------------------------------------ life
    def run(self) -> NoReturn:
        _keep()  # a first launch may be waiting: what is garbage is looked for later
        while True:
            ready = self._selector.select(self._patience())
            for key, _ in ready:
                key.data()
            if not ready:
                self._use_leisure()
            if os.getppid() != self._kernel or (self._is_retired and not self._leases):
                self._leave()

    def _patience(self) -> float:
        return _LEISURE_SECONDS if self._has_leisure() else _PARENT_CHECK_SECONDS

    def _has_leisure(self) -> bool:
        return bool(self._later) and not self._leases and not self._is_retired

    def _use_leisure(self) -> None:
        if self._has_leisure():
            self._later.popleft()()
        if not self._later:
            self._start_put_off()

    def _chores(self) -> deque[Callable[[], object]]:
        """What makes forks cheaper or more useful, in pieces that a request can wait for."""
        imports = [partial(_import_and_settle, name) for name in _LATER]
        return deque([self._compact, *imports, self._compact])

    def _compact(self) -> None:
        areas = [partial(use_large_pages, *area) for area in large_areas()]
        self._later.extendleft(reversed(areas))

    def _leave(self) -> NoReturn:
        """End all ranks, the patient way first, and go."""
        groups = [pid for lease in self._leases.values() for pid in lease.living]
        deadline = time.monotonic() + _TERM_SECONDS
        for pid in groups:
            signal_group(pid, signal.SIGTERM)
        while any(lease.living for lease in self._leases.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
            self._reap()
        for pid in groups:
            signal_group(pid, signal.SIGKILL)
        kill(self._keeper_pid)
        for stray in children_here():
            kill(stray)
        scratch = [lease.scratch for lease in self._leases.values()]
        for folder in [*scratch, *(request.scratch for request, _ in self._put_off)]:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    # ------------------------------------------------------------ requests
    def _serve_requests(self) -> None:
        for message, descriptors in self._control.available():
            match message:
                case StartRanks(ahead=True) if self._later:
                    self._put_off.append((message, descriptors))
                case StartRanks():
                    self._start(message, descriptors)
                case Needed():
                    self._start_put_off()
                case Retire():
                    self._is_retired = True
                case _:
                    raise TypeError(f"The template cannot understand {message!r}.")
        if self._control.at_end:
            self._leave()

    def _start_put_off(self) -> None:
        orders, self._put_off = self._put_off, []
        for order in orders:
            self._start(*order)

    def _start(self, request: StartRanks, descriptors: tuple[int, ...]) -> None:
        *ends, lease_end, listener = descriptors
        kernel = Channel(socket.socket(fileno=lease_end))
        lease = _Lease(next(self._numbers), request.run_id, request.scratch, kernel)
        for local_rank in range(len(request.seats)):
            mine = ends[3 * local_rank : 3 * local_rank + 3]
            others = [d for d in ends if d not in mine]
            pid = self._fork([*others, listener, lease_end])
            if pid == 0:
                _become_rank(request, local_rank, mine)
            lease.living[pid] = local_rank
        lease.pids = tuple(lease.living)
        self._keeper.send(OpenStore(lease.number, request.rendezvous), (listener,))
        for descriptor in (*ends, listener):
            os.close(descriptor)
        self._leases[lease.number] = lease
        self._selector.register(kernel, selectors.EVENT_READ, lambda: self._serve_lease(lease))
        _tell(kernel, RanksStarted(lease.pids))

    def _serve_lease(self, lease: _Lease) -> None:
        for message, _ in lease.socket.available():
            if isinstance(message, SignalRanks):
                self._signal(lease, message)
        if lease.socket.at_end:
            self._end_lease(lease)

    @staticmethod
    def _signal(lease: _Lease, message: SignalRanks) -> None:
        for pid, local_rank in lease.living.items():
            if local_rank in message.local_ranks:
                send = signal_group if message.whole_group else signal_one
                send(pid, message.signal)

    def _end_lease(self, lease: _Lease) -> None:
        """The kernel has let go of the run: nothing of it may remain."""
        for pid in lease.living:
            signal_group(pid, signal.SIGKILL)
        self._selector.unregister(lease.socket)
        lease.socket.close()
        self._keeper.send(CloseStore(lease.number))
        if not lease.living:
            self._forget(lease)

    def _forget(self, lease: _Lease) -> None:
        self._leases.pop(lease.number, None)
        shutil.rmtree(lease.scratch, ignore_errors=True)
        self._kill_strays(lease.run_id)

    def _kill_strays(self, run_id: str) -> None:
        """End what left its rank's group and outlived it, unless it is another run's."""
        ours = {self._keeper_pid}.union(*(lease.pids for lease in self._leases.values()))
        others = {lease.run_id for lease in self._leases.values()} - {run_id}
        for pid in children_here():
            if pid not in ours and not environment_names(pid, others):
                kill(pid)

    # ------------------------------------------------------------ children
    def _watch_children(self) -> int:
        """A descriptor that becomes readable when a child ends."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._wake_write = write
        self._selector.register(read, selectors.EVENT_READ, self._children_changed)
        return read

    def _children_changed(self) -> None:
        try:
            while os.read(self._child_ended, 4096):
                pass
        except BlockingIOError:
            pass
        self._reap()

    def _reap(self) -> None:
        owners = {pid: lease for lease in self._leases.values() for pid in lease.living}
        while (ended := next_ended(owners)) is not None:
            pid, status, usage = ended
            if pid == self._keeper_pid:
                self._leave()  # no run could start any more; the kernel starts another template
            if pid in owners:
                peak = usage.ru_maxrss * 1024
                self._ended(owners[pid], pid, status, peak)

    def _ended(self, lease: _Lease, pid: int, status: int, peak_bytes: int) -> None:
        local_rank = lease.living.pop(pid)
        if lease.socket.fileno() >= 0:
            _tell(lease.socket, RankEnded(local_rank, status, time.monotonic(), peak_bytes))
        elif not lease.living:
            self._forget(lease)

    def _fork(self, also_close: list[int]) -> int:
        """Fork; the child leads a session and holds nothing of the template's."""
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            end_with_parent(template)
            gc.enable()
            surroundings.take_session()
            surroundings.reset_signals()
            self._drop_everything()
            for descriptor in also_close:
                os.close(descriptor)
        return pid

    def _drop_everything(self) -> None:
        self._selector.close()
        self._control.close()
        for lease in self._leases.values():
            lease.socket.close()
        if hasattr(self, "_keeper"):
            self._keeper.close()
        os.close(self._child_ended)
        os.close(self._wake_write)

    def _fork_keeper(self) -> tuple[Channel, int]:
        ours, theirs = Channel.pair()
        pid = self._fork([ours.fileno()])
        if pid == 0:
            name_process("nb-keeper")
            keep_stores(Channel(theirs))
        theirs.close()
        return ours, pid


def _become_rank(request: StartRanks, local_rank: int, ends: list[int]) -> NoReturn:
    channel, stdout, stderr = ends
    station = Station(
        seat=cast("Seat", request.seats[local_rank]),
        environment=request.environments[local_rank],
        rendezvous=request.rendezvous,
        stdout=stdout,
        stderr=stderr,
        scratch=request.scratch,
        ahead=request.ahead,
    )
    serve(Channel(socket.socket(fileno=channel)), station)


def _import_and_settle(name: str) -> None:
    importlib.import_module(name)
    _settle()


def _settle() -> None:
    """After imports: let go of what they left behind, and keep the rest."""
    gc.unfreeze()
    gc.collect()
    _keep()


def _keep() -> None:
    """Keep what there is out of the ranks' housekeeping."""
    surroundings.forget_missing_places()  # here: looking through them costs a rank a millisecond
    gc.freeze()  # the collector would touch, and so copy, every page that ranks share
    # What ends the template's own objects is not the ranks' to run: torch, for one, takes apart its
    # operator tables at exit, which takes 25 ms in each rank.
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # noqa: SLF001
    if rules := sys.modules.get("torch._dynamo.trace_rules"):
        rules.clear_lru_cache()  # as each rank's first process group does, for a millisecond
    if "TORCH_LOGS" not in surroundings.environment():
        for module, function in _LOGS_AT_EXIT:
            if loaded := sys.modules.get(module):
                atexit.unregister(getattr(loaded, function, atexit.unregister))


def _tell(channel: Channel, message: object) -> None:
    try:
        channel.send(message)
    except OSError:
        return  # the kernel has let go; the end of file says the rest
