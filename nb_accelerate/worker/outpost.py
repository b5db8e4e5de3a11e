"""Outpost: a rank's line to the kernel, kept by one thread beside the training.

The training thread only appends to queues (a few microseconds, no system call while the thread
is awake); the outpost's thread reads tensors, merges what the kernel is too slow to take, answers
questions, notices when the main thread is stuck in a collective, and ends the process when the
kernel has gone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from nb_accelerate.messages import (
    Metrics,
    Progress,
    RequestStop,
    ShowStack,
    StackShown,
    Waiting,
)
from nb_accelerate.worker import stacks
from nb_accelerate.worker.backlog import Backlog, snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nb_accelerate.channel import Channel
    from nb_accelerate.messages import Frame, WorkerMessage

__all__ = ["Outpost"]

# Records are gathered for this long before they travel: at most 50 messages a second.
_GATHER_SECONDS = 0.02
_LINGER_SECONDS = 0.5
_MOST_SECONDS_BETWEEN_LOOKS = 1.0


class Outpost:
    """Reports for one rank (a `replica.Reporter`) and listens for it."""

    def __init__(self, channel: Channel, rank: int, scratch: str) -> None:
        self._channel = channel
        self._rank = rank
        self._scratch = scratch
        self._backlog = Backlog()
        self._progress: dict[str, Progress] = {}
        self._letters: deque[WorkerMessage] = deque()
        self._next_step = 0
        self._stop_requested = False
        self._delivering = threading.Lock()
        self._stall = _Stall(rank)
        self._has_call = threading.Event()
        self._is_retired = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._awake = False
        self._reported = 0.0
        self._parent = os.getppid()

    # ------------------------------------------------------------ the training thread's side
    def metrics(self, values: Mapping[str, object], step: int | None) -> None:
        """Take down one record; tensors on an accelerator are copied there and read later."""
        if step is None:
            step = self._next_step
        self._next_step = step + 1
        self._backlog.fresh.append((step, time.time(), snapshot(values)))
        self._wake()

    def progress(self, description: str, done: int, total: int | None, *, finished: bool) -> None:
        """Take down how far a loop is; only the newest of each loop travels."""
        self._progress[description] = Progress(
            self._rank, description, done, total, finished, time.monotonic()
        )
        self._wake()

    def should_stop(self) -> bool:
        """Whether the user has asked this run to end."""
        return self._stop_requested

    def post(self, message: WorkerMessage) -> None:
        """Send soon, from any thread and from signal handlers."""
        self._letters.append(message)
        self._wake()

    def flush(self) -> None:
        """Send all that was taken down; blocks while the kernel does not read."""
        with self._delivering:
            self._deliver(patient=True)

    def start(self) -> None:
        """Start the thread; the channel is still the main thread's."""
        threading.Thread(target=self._keep, name="nb_accelerate-outpost", daemon=True).start()

    def listen(self, stall_seconds: float) -> None:
        """Take over what the kernel says, and watch the main thread.

        Args:
            stall_seconds: a collective without progress for this long is reported.
        """
        self._stall.look_seconds = min(_MOST_SECONDS_BETWEEN_LOOKS, stall_seconds / 3)
        self._has_call.set()

    def retire(self, patience: float) -> None:
        """All is said: wait until the kernel lets go, but not for long.

        Taking down a process costs milliseconds of processor time that the kernel, which is about
        to give the cell back, may need.
        """
        self._is_retired = True
        gone = select.poll()
        gone.register(self._channel, select.POLLIN)
        gone.poll(1000 * patience)

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            with suppress(BlockingIOError):  # it has plenty of wake-up calls already
                os.write(self._wake_write, b"!")

    # ------------------------------------------------------------ the outpost's own thread
    def _keep(self) -> None:
        self._has_call.wait()
        next_look = time.monotonic() + self._stall.look_seconds
        while True:
            rest = max(0.0, next_look - time.monotonic())
            channel, wake = self._channel.fileno(), self._wake_read
            patience = min(rest, _GATHER_SECONDS) if self._awake else rest
            ready, _, _ = select.select([channel, wake], [], [], patience)
            if self._is_retired:
                return
            if channel in ready:
                self._listen()
            if wake in ready:
                os.read(self._wake_read, 4096)
            if self._awake:
                self._report()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + self._stall.look_seconds
                self._check_parent()
                if waiting := self._stall.look():
                    self.post(waiting)

    def _report(self) -> None:
        """Deliver; after a time without anything to deliver, sleep until the next wake-up call.

        Staying awake in between spares the training thread a system call and the hand-over of
        Python's lock at every step.
        """
        now = time.monotonic()
        if self._has_news():
            self._reported = now
            with self._delivering:
                self._deliver(patient=False)
        elif now - self._reported > _LINGER_SECONDS:
            self._awake = False
            if self._has_news():  # it came just before the flag fell
                self._awake = True

    def _has_news(self) -> bool:
        return bool(self._backlog.fresh or self._backlog.records or self._progress or self._letters)

    def _listen(self) -> None:
        for message, _ in self._channel.available():
            match message:
                case ShowStack():
                    frames = stacks.frames_of_main()
                    self.post(
                        StackShown(
                            self._rank, stacks.user_frames(frames), stacks.collective_of(frames)
                        )
                    )
                case RequestStop():
                    self._stop_requested = True
                case _:
                    raise TypeError(f"The kernel cannot say {message!r}.")
        if self._channel.at_end:
            self._follow_kernel()

    def _check_parent(self) -> None:
        # The kernel's end of the channel may live on in a process that it forked.
        if os.getppid() != self._parent:
            self._follow_kernel()

    def _follow_kernel(self) -> None:
        """It has gone: so go we, and our loader workers with us."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    def _deliver(self, *, patient: bool) -> None:
        while self._letters:
            self._channel.send(self._letters.popleft())
        self._backlog.take_in()
        while self._backlog.records and (patient or self._kernel_reads()):
            self._channel.send(Metrics(self._rank, self._backlog.next_batch()))
        while self._progress and (patient or self._kernel_reads()):
            self._channel.send(self._progress.popitem()[1])

    def _kernel_reads(self) -> bool:
        """Whether a small frame can be sent without waiting for the kernel."""
        _, writable, _ = select.select([], [self._channel], [], 0)
        return bool(writable)


class _Stall:
    """Notices that the main thread does not get on within a collective."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.look_seconds = _MOST_SECONDS_BETWEEN_LOOKS
        self._seen: tuple[object, ...] = ()
        self._since = time.monotonic()
        self._cpu_seconds = 0.0

    def look(self) -> Waiting | None:
        frames = stacks.frames_of_main()
        call = stacks.collective_of(frames)
        now = time.monotonic()
        if not call or self._has_moved(frames, call):
            self._since = now
            return None
        return Waiting(self._rank, now - self._since, call, stacks.user_frames(frames))

    def _has_moved(self, frames: tuple[Frame, ...], call: str) -> bool:
        position = (frames, _collectives_so_far())
        cpu_seconds = _main_thread_cpu_seconds()
        busy = cpu_seconds - self._cpu_seconds > 0.05 * self.look_seconds
        moved = position != self._seen or (call == "backward" and busy)
        self._seen, self._cpu_seconds = position, cpu_seconds
        return moved


def _collectives_so_far() -> int:
    """How many collectives all groups of this process have begun; standing still means waiting."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return 0
    total = 0
    for group in list(c10d._world.pg_map):  # noqa: SLF001 - there is no public list of groups
        try:
            total += group._get_sequence_number_for_group()  # noqa: SLF001 - likewise
        except RuntimeError:  # a backend that does not count
            continue
    return total


def _main_thread_cpu_seconds() -> float:
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
