"""Workers: the operation that runs a function in worker processes."""

from __future__ import annotations

import _thread
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from nb_accelerate import payload
from nb_accelerate.errors import LaunchError
from nb_accelerate.launch.driver import Driver
from nb_accelerate.launch.interrupts import held_back
from nb_accelerate.launch.methods import METHODS
from nb_accelerate.launch.standing import Standing
from nb_accelerate.launch.story import Scene
from nb_accelerate.launch.template import template_of_this_kernel
from nb_accelerate.launch.values import Load, Values
from nb_accelerate.launch.verdict import how_it_ended, verdict
from nb_accelerate.messages import Go, Returned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nb_accelerate.launch.crew import Crew
    from nb_accelerate.launch.limits import Ask, Limits
    from nb_accelerate.machine import Machine
    from nb_accelerate.messages import RunMessage
    from nb_accelerate.payload import Packed
    from nb_accelerate.plan import Plan
    from nb_accelerate.record import RunRecord

__all__ = ["Call", "Workers"]

_ERROR_LINES = 200
_AFTER_SECONDS = 0.006


@dataclass(frozen=True, slots=True)
class Call:
    """What to call, and whose state to bring back."""

    function: Callable[..., object]
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] | None = None
    write_back: tuple[Any, ...] = ()

    def packed(self) -> Packed:
        """By value, for the ranks.

        Raises:
            PayloadError: a part of it cannot travel; names it.
        """
        return payload.pack_call(
            self.function, tuple(self.args), dict(self.kwargs or {}), self.write_back
        )


class Workers:
    """One crew at work on one call."""

    def __init__(
        self, plan: Plan, call: Call, limits: Limits, machine: Machine, *, port: int = 0
    ) -> None:
        self._plan = plan
        self._call = call
        self._limits = limits
        self._machine = machine
        self._port = port
        self._crew: Crew | None = None
        self._driver: Driver | None = None
        self._labels: dict[str, str] = {}
        self._may_start_again = False
        self._heard: list[RunMessage] = []
        self._contents: dict[int, tuple[Any, Sequence[Any]]] = {}

    # ------------------------------------------------------------ an Operation
    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self._at_work.over and not self._heard

    @property
    def asked(self) -> Ask | None:
        """Why it was asked to end early, if it was."""
        return self._driver.asked if self._driver else None

    @property
    def in_kernel(self) -> bool:
        """It is in processes of its own."""
        return False

    def start(self) -> None:
        """Pack the call, fill the seats, send them off."""
        method = METHODS[self._plan.start_method]
        self._may_start_again = method.was_running()
        if not method.ships_the_call:
            self._send_off(None, {})
            return
        with self._call.packed() as packed:
            sources, self._labels = payload.cell_sources(packed.filenames)
            self._send_off(packed, sources)

    def step(self, patience: float) -> list[RunMessage]:
        """What happened."""
        if self._heard:
            heard, self._heard = self._heard, []
        else:
            heard = self._at_work.step(patience)
        if self._at_work.lease_lost and self._at_work.unsent and self._may_start_again:
            self._start_again()
            return []  # what is heard of the first crew's end is not this run's story
        return heard

    def ask(self, reason: Ask) -> None:
        """End early."""
        self._at_work.ask(reason)

    def close(self) -> None:
        """Let go of the crew, and have the next one made ahead, beside whatever comes next."""
        if self._driver is not None:
            self._driver.close()
        # Not threading.Thread: its start waits until the thread runs, which takes milliseconds
        # while the ends of the ranks keep the cores busy.
        _thread.start_new_thread(self._afterwards, ())

    def error(self, record: RunRecord) -> BaseException | None:
        """The culprit's."""
        standings = self._at_work.standings
        if self._at_work.lease_lost and not any(s.pid for s in standings):
            return template_of_this_kernel().obituary()
        return verdict(standings, self._scene(), [_error_lines(record, s.rank) for s in standings])

    def values(self) -> Values:
        """What the ranks returned."""
        standings = self._driver.standings if self._driver else [Standing(0)]
        return Values([self._load(standing) for standing in standings])

    def hand_over(self) -> None:
        """Load rank 0's states into the kernel's own objects, if it has returned."""
        first = self._at_work.standings[0]
        if not self._call.write_back or not isinstance(first.answer, Returned):
            return
        _, states = self._unpacked(first)
        for thing, state in zip(self._call.write_back, states, strict=True):
            thing.load_state_dict(state)

    # ------------------------------------------------------------ its parts
    @property
    def _at_work(self) -> Driver:
        if self._driver is None:
            raise LaunchError("The run has not been started.")
        return self._driver

    def _fill_seats(self) -> Driver:
        """Get processes; with an interrupt in between, nobody would hold them."""
        method = METHODS[self._plan.start_method]
        call = None if method.ships_the_call else self._in_memory()
        with held_back():
            self._crew = method.start(self._plan, call, self._port)
            self._driver = Driver(self._crew, self._limits, self._labels)
        return self._driver

    def _in_memory(self) -> object:
        call = self._call
        return (call.function, tuple(call.args), dict(call.kwargs or {}), call.write_back)

    def _send_off(self, packed: Packed | None, sources: dict[str, str]) -> None:
        driver = self._fill_seats()
        go = Go(
            call=packed.parcel if packed else None,
            sources=sources,
            labels=self._labels,
            path=tuple(map(str, sys.path)),
            installs=tuple(
                finder.workers_import
                for finder in sys.meta_path
                if hasattr(finder, "workers_import")
            ),
            cwd=os.getcwd(),  # noqa: PTH109 - a string travels
            argv=tuple(sys.argv[:1]),
            stall_seconds=self._limits.hang_notice_seconds,
        )
        driver.go(go, packed.fd if packed else None)
        # Ranks made ahead are ready: they have their call before the kernel does anything else.
        self._heard = driver.step(0)

    def _afterwards(self) -> None:
        # Let go of Python's lock at once: the caller would wait for it up to 5 ms.
        time.sleep(_AFTER_SECONDS)
        if self._driver is not None:
            self._driver.sweep()
        if self._crew is not None:
            METHODS[self._plan.start_method].prepare(self._crew)

    def _start_again(self) -> None:
        """Whoever was to start the ranks had been ended before; nothing of the call has run."""
        self._may_start_again = False
        lost = self._at_work
        if lost.unsent is None:
            return
        self._fill_seats().go(*lost.unsent)
        lost.close()
        lost.sweep()

    def _scene(self) -> Scene:
        return Scene(
            labels=self._labels,
            memory_bytes=self._machine.memory_bytes or 0,
            shm_bytes=self._machine.shm_bytes,
            template_story=self._template_story() if self._at_work.lease_lost else "",
        )

    @staticmethod
    def _template_story() -> str:
        template = template_of_this_kernel()
        ending = how_it_ended(template.ending(), None)
        return (
            f"the template process that started it has ended ({ending}), and its ranks with it. "
            "Launch again: a new one is started"
        )

    def _load(self, standing: Standing) -> Load | LaunchError:
        answer = standing.answer
        if isinstance(answer, Returned):
            if answer.complaint:
                return LaunchError(
                    f"rank {standing.rank}'s value cannot travel: {answer.complaint}"
                )
            return lambda: self._unpacked(standing)[0]
        return LaunchError(f"rank {standing.rank} has no value: its function did not return.")

    def _unpacked(self, standing: Standing) -> tuple[Any, Sequence[Any]]:
        """(value, states), unpacked once."""
        if standing.rank not in self._contents:
            answer = cast("Returned", standing.answer)
            descriptor, standing.descriptor = standing.descriptor, None
            content = payload.unpack(answer.value, descriptor)
            self._contents[standing.rank] = cast("tuple[Any, Sequence[Any]]", content)
        return self._contents[standing.rank]


def _error_lines(record: RunRecord, rank: int) -> list[str]:
    lines = [line.text for line in record.log if line.rank == rank and line.stream == "stderr"]
    return lines[-_ERROR_LINES:]
