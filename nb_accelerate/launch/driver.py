"""Driver: one run's event loop, from filled seats to the last end.

One thread calls `step` until `over`; it reads channels, pipes and the lease, sends what the
situation asks for, and hands out what the user should see. Other threads and signal handlers
reach it by `ask` alone.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import time
from collections import deque
from typing import TYPE_CHECKING

from nb_accelerate.launch.groups import signal_group
from nb_accelerate.launch.ladder import (
    AFTER_FAILURE,
    AT_ONCE,
    Descent,
    Ladder,
    Rung,
    after_interrupt,
)
from nb_accelerate.launch.limits import Ask, Limits
from nb_accelerate.launch.lines import LineAssembler
from nb_accelerate.launch.standing import Standing
from nb_accelerate.launch.watch import Watch, left_behind
from nb_accelerate.messages import (
    Go,
    Interrupted,
    Left,
    Metrics,
    Notice,
    Progress,
    Raised,
    RankEnded,
    RanksStarted,
    Ready,
    RequestStop,
    Returned,
    RunMessage,
    ShowStack,
    SignalRanks,
    StackShown,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nb_accelerate.channel import Channel
    from nb_accelerate.launch.crew import Crew

__all__ = ["Driver"]

_READ_BYTES = 1 << 16
# Output of one rank read in a row, so that a flood of one does not silence the others.
_MOST_READS = 16


class Driver:
    """Drives one crew."""

    def __init__(self, crew: Crew, limits: Limits, labels: dict[str, str]) -> None:
        self.standings = [Standing(seat.rank) for seat in crew.seats]
        self.asked: Ask | None = None
        """Why the run was asked to end, if it was."""
        self._crew = crew
        self._limits = limits
        self._watch = Watch(limits.hang_notice_seconds, labels)
        self._asks: deque[Ask] = deque()
        self._descent = Descent(limits.grace_seconds)
        self._rung: Rung | None = None
        """The last that sent a signal."""
        self._left_behind = False
        self._go: tuple[Go, int | None] | None = None
        self._lease_lost = False
        now = time.monotonic()
        self._time_out = now + limits.timeout_seconds if limits.timeout_seconds else None
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        self._assemblers: dict[int, LineAssembler] = {}
        self._register()

    # ------------------------------------------------------------ the interface
    @property
    def over(self) -> bool:
        """Nothing more will come."""
        if self._descent.has_begun and not any(s.pid for s in self.standings):
            return True  # none has been started yet, and letting go of the lease ends those to come
        if self._limits.settles or self._descent.has_begun:
            failed = self._descent.has_failed(time.monotonic())
            return failed or all(s.is_gone for s in self.standings)
        return all(s.is_done for s in self.standings)

    @property
    def failed(self) -> bool:
        """A rank died or raised, or was left behind in a collective."""
        return self._left_behind or any(
            isinstance(s.answer, Raised) or (s.answer is None and s.is_gone) for s in self.standings
        )

    @property
    def lease_lost(self) -> bool:
        """The ranks' parent process is gone."""
        return self._lease_lost

    @property
    def unsent(self) -> tuple[Go, int | None] | None:
        """The call and its descriptor, as long as no rank has got it."""
        return self._go

    def go(self, go: Go, descriptor: int | None) -> None:
        """Send every rank its call, once all are ready.

        Not before: a rank that has done its part and leaves would break the connections of one
        that is still joining the group.
        """
        self._go = go, None if descriptor is None else os.dup(descriptor)

    def ask(self, reason: Ask) -> None:
        """Ask for the end, from any thread or signal handler; a second time skips all patience."""
        self._asks.append(reason)
        try:
            os.write(self._wake_write, b"!")
        except OSError:
            return  # full, so it is awake; or closed, so the run is over

    def step(self, patience: float) -> list[RunMessage]:
        """Wait up to `patience` seconds for something to happen, deal with it, tell of it."""
        heard: list[RunMessage] = []
        for key, _ in self._selector.select(self._patience(patience)):
            heard += key.data()
        self._heed_asks()
        heard += self._keep_time(time.monotonic())
        return heard

    def close(self) -> None:
        """Let go of the crew (what still runs is killed) and of all descriptors."""
        self._selector.close()
        self._crew.close()
        if self._go is not None and self._go[1] is not None:
            os.close(self._go[1])
        os.close(self._wake_read)
        os.close(self._wake_write)

    def sweep(self) -> None:
        """Remove the run's folder; the ranks' parent does so too, unless it was killed since."""
        shutil.rmtree(self._crew.scratch, ignore_errors=True)

    # ------------------------------------------------------------ what arrives
    def _register(self) -> None:
        def on(source: int | Channel, act: Callable[[], list[RunMessage]]) -> None:
            self._selector.register(source, selectors.EVENT_READ, act)

        on(self._wake_read, self._drain_wake)
        on(self._crew.lease, self._hear_lease)
        for standing, channel, outputs in zip(
            self.standings, self._crew.channels, self._crew.outputs, strict=True
        ):
            on(channel, lambda s=standing, c=channel: self._hear(s, c))  # type: ignore[misc]
            for descriptor, stream in zip(outputs, ("stdout", "stderr"), strict=True):
                self._assemblers[descriptor] = LineAssembler(standing.rank, stream)  # type: ignore[arg-type]
                on(descriptor, lambda d=descriptor: self._read(d))  # type: ignore[misc]

    def _drain_wake(self) -> list[RunMessage]:
        os.read(self._wake_read, _READ_BYTES)
        return []

    def _read(self, descriptor: int, most: int = _MOST_READS) -> list[RunMessage]:
        """What a rank has written to one of its pipes."""
        heard: list[RunMessage] = []
        assembler = self._assemblers.get(descriptor)
        if assembler is None:
            return heard  # its end was read in the same step, on the rank's last word
        for _ in range(most):
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                heard += assembler.flush(time.monotonic(), force=True)
                self._unregister(descriptor)
                break
            heard += assembler.feed(data, time.monotonic())
            if len(data) < _READ_BYTES // 16:
                break  # most likely that was all; saves a system call per line
        return heard

    def _hear(self, standing: Standing, channel: Channel) -> list[RunMessage]:
        heard: list[RunMessage] = []
        for message, descriptors in channel.available():
            heard += self._take(standing, message, descriptors)
        if channel.at_end:
            self._unregister(channel)
        return heard

    def _take(
        self, standing: Standing, message: object, descriptors: Sequence[int]
    ) -> list[RunMessage]:
        match message:
            case StackShown():
                self._watch.learns(message)
                return []
            case Left():
                standing.has_left = True
                return [*self._rest_of_output(standing), message]
            case Returned() | Raised():
                standing.answer = message
                standing.descriptor = next(iter(descriptors), None)
                self._answered(standing)
            case Waiting():
                standing.waiting, standing.waiting_heard = message, time.monotonic()
                self._look_around(message)
            case Ready(_, pid):
                standing.pid, standing.is_ready = pid, True
                self._send_off()
            case Metrics() | Progress() | Interrupted():
                pass
            case _:
                raise TypeError(f"A rank cannot say {message!r}.")
        return [message]

    def _hear_lease(self) -> list[RunMessage]:
        heard: list[RunMessage] = []
        for message, _ in self._crew.lease.available():
            match message:
                case RanksStarted(pids):
                    for standing, pid in zip(self.standings, pids, strict=True):
                        standing.pid = pid
                case RankEnded():
                    heard += self._ended(self.standings[message.local_rank], message)
                case _:
                    raise TypeError(f"A nursery cannot say {message!r}.")
        if self._crew.lease.at_end:
            self._unregister(self._crew.lease)
            heard += self._lose_lease()
        return heard

    def _ended(self, standing: Standing, end: RankEnded) -> list[RunMessage]:
        """A process is gone: first all that it still said."""
        heard = self._hear(standing, self._crew.channels[self._index(standing)])
        heard += self._rest_of_output(standing)
        standing.end = end
        if standing.answer is None:
            self._end(AFTER_FAILURE)
        return [*heard, end]

    def _lose_lease(self) -> list[RunMessage]:
        """The ranks' parent is gone; the system has killed them with it, their children we end."""
        self._lease_lost = True
        heard: list[RunMessage] = []
        for standing in self.standings:
            heard += self._hear(standing, self._crew.channels[self._index(standing)])
            heard += self._rest_of_output(standing)
            if standing.pid is not None and not standing.is_gone:
                signal_group(standing.pid, signal.SIGKILL)
            standing.lost = not standing.is_gone
        return heard

    def _rest_of_output(self, standing: Standing) -> list[RunMessage]:
        heard: list[RunMessage] = []
        for descriptor in self._crew.outputs[self._index(standing)]:
            heard += self._read(descriptor, most=1 << 20)
            if assembler := self._assemblers.get(descriptor):
                heard += assembler.flush(time.monotonic(), force=True)
        return heard

    def _index(self, standing: Standing) -> int:
        return self.standings.index(standing)

    # ------------------------------------------------------------ what to do about it
    def _send_off(self) -> None:
        if self._go is None or not all(s.is_ready for s in self.standings):
            return
        (go, descriptor), self._go = self._go, None
        for channel in self._crew.channels:
            self._send(channel, go, () if descriptor is None else (descriptor,))
        if descriptor is not None:
            os.close(descriptor)

    def _answered(self, standing: Standing) -> None:
        if isinstance(standing.answer, Raised):
            self._end(AFTER_FAILURE)

    def _look_around(self, waiting: Waiting) -> None:
        now = time.monotonic()
        if self._watch.hears(waiting, now):
            for standing, channel in zip(self.standings, self._crew.channels, strict=True):
                if standing.answer is None:
                    self._send(channel, ShowStack())
        if left_behind(self.standings, now) and not self._descent.has_begun:
            self._left_behind = True
            self._end(AFTER_FAILURE)

    def _heed_asks(self) -> None:
        while self._asks:
            reason = self._asks.popleft()
            if self._descent.has_begun:
                self._descent.hasten(time.monotonic())
                continue
            self.asked = reason
            # Before the call has been sent there is nothing that a rank could save.
            self._end(AT_ONCE if self._go else after_interrupt(self._limits.grace_seconds))

    def request_stop(self) -> None:
        """Ask the ranks, in the cooperative way, to end at the next point that suits them."""
        for standing, channel in zip(self.standings, self._crew.channels, strict=True):
            if standing.answer is None:
                self._send(channel, RequestStop())

    def _keep_time(self, now: float) -> list[RunMessage]:
        heard: list[RunMessage] = []
        for assembler in self._assemblers.values():
            heard += assembler.flush(now)
        if text := self._watch.notice(self.standings, now):
            heard.append(Notice(text, "warning"))
        if self._time_out is not None and now >= self._time_out:
            self._time_out = None
            self._asks.append(Ask.TIMEOUT)
            self._heed_asks()
        if rung := self._descent.due(now):
            self._take_rung(rung, now)
        return heard

    def _end(self, ladder: Ladder) -> None:
        """Begin to end the run, unless that has begun."""
        self._descent.begin(ladder, time.monotonic())

    def _take_rung(self, rung: Rung, now: float) -> None:
        """Signal the ranks that it is meant for."""
        targets = [i for i, s in enumerate(self.standings) if self._descent.concerns(s, rung, now)]
        if rung.signal is None or not targets:
            return
        for index in targets:
            self.standings[index].signalled = True
        if self._rung == rung:
            self._kill_directly([self.standings[index] for index in targets])
        self._rung = rung
        message = SignalRanks(tuple(targets), rung.signal, whole_group=rung.whole_group)
        self._send(self._crew.lease, message)

    @staticmethod
    def _kill_directly(standings: Sequence[Standing]) -> None:
        """SIGKILL has had no effect: their parent does not pass it on, being stopped itself."""
        for standing in standings:
            if standing.pid is not None:
                signal_group(standing.pid, signal.SIGKILL)
                standing.lost = _is_dead(standing.pid)

    # ------------------------------------------------------------ small things
    def _patience(self, patience: float) -> float:
        """Not longer than until the next thing that is due."""
        now = time.monotonic()
        due = [now + patience]
        others = (self._time_out, self._watch.deadline(), self._descent.deadline())
        due += [d for d in others if d is not None]
        due += [d for a in self._assemblers.values() if (d := a.deadline()) is not None]
        return max(0.0, min(due) - now)

    def _unregister(self, source: int | Channel) -> None:
        try:
            self._selector.unregister(source)
        except KeyError:
            return  # was already
        if isinstance(source, int):
            del self._assemblers[source]

    @staticmethod
    def _send(channel: Channel, message: object, descriptors: Sequence[int] = ()) -> None:
        try:
            channel.send(message, descriptors)
        except OSError:
            return  # it has gone, and its end is told elsewhere


def _is_dead(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
