"""Run: one launch, from its seats to its values.

A context manager that stops what it started, and an iterator of the messages in between. The
doors use it so, or let a thread do it (`in_background`) and hand the run to the user.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, Self

from nb_accelerate import payload
from nb_accelerate.errors import LaunchError, RunTimeout, Unreturnable
from nb_accelerate.launch.interrupts import as_asks
from nb_accelerate.launch.limits import Ask
from nb_accelerate.record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from nb_accelerate.launch.ledger import Ledger
    from nb_accelerate.launch.values import Values
    from nb_accelerate.messages import RunMessage
    from nb_accelerate.record import Log, MetricTable

__all__ = ["Operation", "Run", "Watcher"]

_TICK_SECONDS = 0.25


class Watcher(Protocol):
    """Whoever watches a run: a cell, a terminal, a test."""

    def show(self, message: RunMessage) -> None:
        """Take in the next message."""

    def tick(self, now: float) -> None:
        """Do what is due at `now` (time.monotonic())."""

    def deadline(self) -> float | None:
        """When `tick` should be called at the latest; None when nothing is due."""

    def close(self, summary: str, *, ok: bool) -> None:
        """The run has ended."""


class Operation(Protocol):
    """What a run runs: worker processes (`launch.workers`) or the kernel itself (`inline`)."""

    @property
    def over(self) -> bool:
        """Nothing more will come."""

    @property
    def asked(self) -> Ask | None:
        """Why it was asked to end early, if it was."""

    @property
    def in_kernel(self) -> bool:
        """Whether the function has this very thread, so that an interrupt is its own affair."""

    def start(self) -> None:
        """Fill the seats and send the call."""

    def step(self, patience: float) -> list[RunMessage]:
        """What happened, after waiting `patience` seconds at most."""

    def ask(self, reason: Ask) -> None:
        """End early; from any thread and from signal handlers."""

    def close(self) -> None:
        """Let go of everything; kill what still runs."""

    def error(self, record: RunRecord) -> BaseException | None:
        """What went wrong, as the user should see it."""

    def values(self) -> Values:
        """What the ranks returned."""

    def hand_over(self) -> None:
        """Put into the kernel's own objects what was asked to be written back."""


class Run:
    """One launch.

    Attributes:
        name: the function's.
        world_size: the number of ranks.
        started: seconds since the epoch.
    """

    def __init__(
        self,
        name: str,
        operation: Operation,
        *,
        world_size: int,
        ledger: Ledger,
        view: Watcher,
        draw: Callable[[Run], None],
    ) -> None:
        self.name = name
        self.world_size = world_size
        self.started = time.time()
        self._ended_at = 0.0
        self._operation = operation
        self._ledger = ledger
        self._draw = draw
        self._view: Watcher | None = view
        self._record = RunRecord(world_size)
        self._error: BaseException | None = None
        self._status = "starting"
        self._values: Values | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._view_complaint = ""

    # ------------------------------------------------------------ what it has to say
    @property
    def status(self) -> str:
        """One of starting, running, finished, failed, interrupted, stopped, timed out."""
        return self._status

    @property
    def metrics(self) -> MetricTable:
        """What the ranks logged so far."""
        return self._record.metrics

    @property
    def log(self) -> Log:
        """The newest output lines; all of them are in `folder`."""
        return self._record.log

    @property
    def folder(self) -> Path:
        """Where the run is kept on disk."""
        return self._ledger.folder

    @property
    def values(self) -> Values:
        """What each rank returned.

        Raises:
            LaunchError: the run has not ended.
        """
        if self._values is None:
            raise LaunchError(f"{self.name} is still {self.status}. Wait for it with `run.wait()`.")
        return self._values

    @property
    def value(self) -> Any:  # noqa: ANN401 - whatever the function returned
        """Rank 0's return value.

        Raises:
            LaunchError: the run has not ended, or rank 0 has no value.
        """
        return self.values[0]

    @property
    def summary(self) -> str:
        """One line: how long, how it ended, what went wrong."""
        end = self._ended_at or time.time()
        parts = [f"{self.name}: {self.status} after {end - self.started:.1f} s"]
        if self._error is not None:
            parts.append(_first_line(self._error))
        if self._view_complaint:
            parts.append(f"the live view failed ({self._view_complaint})")
        return "; ".join(parts)

    @property
    def error(self) -> BaseException | None:
        """What went wrong, once it has ended."""
        return self._error

    # ------------------------------------------------------------ what can be asked of it
    def wait(self, timeout: float | None = None) -> Self:
        """Block until it has ended; then raise what went wrong, if anything.

        An interrupt ends the waiting, not the run: that is `stop()`.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: it still runs.
        """
        __tracebackhide__ = True
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.name} still runs after {timeout} s; it goes on.")
        if publish := getattr(self._view, "publish", None):
            publish()  # a notebook runner keeps only what a running cell sends
        return self.result()

    def stop(self) -> Self:
        """Interrupt the ranks, wait for their end (bounded), and keep what there is.

        Ends as "stopped", which is no error.
        """
        if not self._ended.is_set():
            self._operation.ask(Ask.STOP)
            self._ended.wait()
        return self

    def result(self) -> Self:
        """This run, or its error raised."""
        __tracebackhide__ = True
        if self._error is not None:
            raise self._error
        return self

    def show(self) -> None:
        """Draw the run again, in any cell."""
        self._draw(self)

    def __await__(self) -> Generator[Any, None, Self]:
        import asyncio

        return asyncio.to_thread(self.wait).__await__()

    def __repr__(self) -> str:
        return f"<Run {self.name} on {self.world_size} ranks: {self.status}>"

    def _repr_html_(self) -> str:
        from html import escape

        return (
            f"<p><b>{escape(self.name)}</b> on {self.world_size} ranks: {self.status}</p>"
            f"{self.metrics._repr_html_()}{self.log._repr_html_()}"
        )

    # ------------------------------------------------------------ driving it
    def __enter__(self) -> Self:
        try:
            try:
                self._operation.start()
            finally:
                self._ledger.open()
        except BaseException as error:  # Python calls __exit__ for what was entered only
            self.__exit__(type(error), error, error.__traceback__)
            raise
        self._status = "running"
        return self

    def __iter__(self) -> Iterator[RunMessage]:
        """Each message, after it has been recorded and shown. An interrupt ends the ranks."""
        with self._guarded():
            while not self._operation.over:
                for message in self._operation.step(self._patience()):
                    self._take(message)
                    yield message
                self._tick()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Stop what still runs, settle what came of it, tell the watchers.

        An exception of the block's own passes; the run's error is raised by `result()`.
        """
        try:
            self._settle(error)
        finally:
            self._operation.close()
            self._ended.set()

    def in_background(self) -> Self:
        """Drive an entered run in a thread from here on."""
        self._thread = threading.Thread(target=self._drive, name=f"run {self.name}", daemon=True)
        self._thread.start()
        return self

    def _guarded(self) -> AbstractContextManager[None]:
        """In the kernel itself, an interrupt is the function's own affair."""
        return nullcontext() if self._operation.in_kernel else as_asks(self._operation.ask)

    def tell(self, message: RunMessage) -> None:
        """Say something as the run, before it is driven."""
        self._take(message)

    def _drive(self) -> None:
        try:
            for _ in self:
                pass
        finally:
            self.__exit__(None, sys.exception(), None)

    def _take(self, message: RunMessage) -> None:
        self._record.fold(message)
        self._ledger.record(message)
        self._shown(lambda view: view.show(message))

    def _tick(self) -> None:
        now = time.monotonic()
        self._ledger.tick(now)
        if notice := self._ledger.take_notice():
            self._take(notice)
        self._shown(lambda view: view.tick(now))

    def _patience(self) -> float:
        """Seconds until a watcher has something to do."""
        deadlines = [self._ledger.deadline()]
        self._shown(lambda view: deadlines.append(view.deadline()))
        due = [d for d in deadlines if d is not None]
        return min(_TICK_SECONDS, max(0.0, min(due) - time.monotonic())) if due else _TICK_SECONDS

    def _shown(self, act: Any) -> None:  # noqa: ANN401 - a call on the view
        """A broken picture must not stop a training: the view is left out from then on."""
        if self._view is None:
            return
        try:
            act(self._view)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told once, at the end
            self._view_complaint = f"{type(error).__name__}: {error}"
            self._view = None

    # ------------------------------------------------------------ its end
    def _settle(self, cut_off: BaseException | None) -> None:
        asked = self._operation.asked
        error = cut_off or self._operation.error(self._record)
        self._values = self._operation.values()
        self._status, self._error = _ending(asked, error, self.name)
        if isinstance(self._error, LaunchError):
            self._error.run = self
        if self._status == "finished" or isinstance(self._error, Unreturnable):
            self._operation.hand_over()
        self._ended_at = time.time()
        summary = self.summary
        self._shown(lambda view: view.close(summary, ok=self._status == "finished"))
        self._ledger.close({"ok": self._error is None, "status": self.status, "summary": summary})


def _first_line(error: BaseException) -> str:
    text = payload.attempt(lambda: str(error))
    words = text.strip() if isinstance(text, str) else ""
    return ": ".join(filter(None, [type(error).__name__, *words.splitlines()[:1]]))


def _ending(
    asked: Ask | None, error: BaseException | None, name: str
) -> tuple[str, BaseException | None]:
    """The status, and what to raise."""
    match asked:
        case Ask.INTERRUPT:
            return "interrupted", KeyboardInterrupt()
        case Ask.STOP:
            return "stopped", None
        case Ask.TIMEOUT:
            return "timed out", RunTimeout(f"{name} took longer than its timeout and was stopped.")
        case None:
            pass
    if error is None:
        return "finished", None
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed", error
