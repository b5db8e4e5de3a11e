"""Interrupts that wait: between two arbitrary instructions, one could leave a process behind."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nb_accelerate.launch.limits import Ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["as_asks", "held_back"]


@contextmanager
def as_asks(ask: Callable[[Ask], None]) -> Iterator[None]:
    """In the main thread, turn SIGINT into a wish that the run's loop grants at a safe moment.

    A KeyboardInterrupt could lose a message; and a second one could cut off the cleaning up after
    the first.
    """
    with _handled_by(lambda: ask(Ask.INTERRUPT)):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Let SIGINT wait until the block is through, which must be short.

    Raises:
        KeyboardInterrupt: afterwards, or whatever the handler from before does.
    """
    came = threading.Event()
    with _handled_by(came.set):
        yield
    if came.is_set():
        signal.raise_signal(signal.SIGINT)


@contextmanager
def _handled_by(act: Callable[[], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
