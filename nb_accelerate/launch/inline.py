"""Inline: the operation that runs the function in the kernel itself, for pdb and one device.

The same contract as workers, without a process: output goes straight to the cell, and an
exception is the function's own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nb_accelerate.errors import LaunchError
from nb_accelerate.launch.values import Values
from nb_accelerate.messages import Metric, Metrics, Progress
from nb_accelerate.replica import Replica, acting_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nb_accelerate.launch.limits import Ask
    from nb_accelerate.launch.workers import Call
    from nb_accelerate.messages import RunMessage
    from nb_accelerate.plan import Seat
    from nb_accelerate.record import RunRecord

__all__ = ["Inline"]


class Inline:
    """Runs the call at its first step, in the calling thread."""

    def __init__(self, seat: Seat, call: Call) -> None:
        self._seat = seat
        self._call = call
        self._reporter = _Collector()
        self._result: Values | None = None

    @property
    def over(self) -> bool:
        """The function has ended."""
        return self._result is not None

    @property
    def asked(self) -> Ask | None:
        """Nobody else can ask while the function has the thread."""
        return None

    @property
    def in_kernel(self) -> bool:
        """It is."""
        return True

    def start(self) -> None:
        """Nothing to start."""

    def step(self, patience: float) -> list[RunMessage]:
        """Call the function; its exception passes as it is."""
        del patience
        seat = self._seat
        replica = Replica(
            device=seat.device,
            mixed_precision=seat.mixed_precision,
            gradient_accumulation_steps=seat.gradient_accumulation_steps,
            reporter=self._reporter,
        )
        with acting_as(replica):
            value = self._call.function(*self._call.args, **(self._call.kwargs or {}))
        self._result = Values([lambda: value])
        return self._reporter.messages

    def ask(self, reason: Ask) -> None:
        """Too late: the function has the thread."""

    def close(self) -> None:
        """Nothing to let go of."""

    def error(self, record: RunRecord) -> BaseException | None:
        """An exception has already passed through `step`."""
        del record
        return None

    def values(self) -> Values:
        """What the function returned."""
        return self._result or Values([LaunchError("The function did not return.")])

    def hand_over(self) -> None:
        """The function worked on the kernel's own objects."""


class _Collector:
    """The reporter: what the function logs, as the messages that a worker would have sent."""

    def __init__(self) -> None:
        self.messages: list[RunMessage] = []
        self._next_step = 0

    def metrics(self, values: Mapping[str, object], step: int | None) -> None:
        """Take down one record."""
        step = self._next_step if step is None else step
        self._next_step = step + 1
        numbers = {name: n for name, v in values.items() if (n := _number(v)) is not None}
        self.messages.append(Metrics(0, (Metric(step, time.time(), numbers),)))

    def progress(self, description: str, done: int, total: int | None, *, finished: bool) -> None:
        """Take down how far a loop is."""
        self.messages.append(Progress(0, description, done, total, finished, time.monotonic()))

    def should_stop(self) -> bool:
        """Nobody can ask."""
        return False


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]  # tensors and numpy scalars allow it
    except (TypeError, ValueError, RuntimeError):
        return None
