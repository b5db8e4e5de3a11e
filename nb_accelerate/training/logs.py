"""Logs: loggers that know their rank."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .ambient import collectives_here
from .joining import environment, is_to_join, replica_here

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from .nested import Anything

__all__ = ["MultiProcessAdapter", "get_logger"]

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class MultiProcessAdapter(_Adapter):
    """A logger whose messages begin with the rank, and come from the main process alone.

    Its methods take two arguments more, for one message:

    - `main_process_only=False` lets every rank log;
    - `in_order=True` lets every rank log, one after the other. Every rank must call it then,
      whatever its level.

    Raises:
        RuntimeError: when logging, where the process was started as one of several by another
            launcher and has not joined them yet, so that its rank is not known.
    """

    def process(
        self, msg: Anything, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """The message with the rank before it."""
        msg, kwargs = super().process(msg, kwargs)
        kwargs.setdefault("stacklevel", 2)  # the caller of `log`, not `log` itself
        return f"[RANK {replica_here().rank}] {msg}", kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Anything) -> None:
        """Log a message, see the class."""
        of_main = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        enabled = self.isEnabledFor(level)
        if not enabled and not in_order:
            return
        if is_to_join():
            raise RuntimeError(
                f"The logger {self.logger.name!r} was used before the ranks have met, so it does "
                f"not know its own. Make an Accelerator() or a PartialState() first."
            )
        rank, world_size = replica_here().rank, replica_here().world_size
        ranks = range(world_size) if in_order else [0] if of_main else [rank]
        if enabled and rank in ranks:
            msg, kwargs = self.process(msg, kwargs)  # type: ignore[assignment]
        for turn in ranks:
            if enabled and turn == rank:
                # Called from here, not from a function of ours: `stacklevel` counts the frames.
                self.logger.log(level, msg, *args, **kwargs)
            if in_order:  # not only where the level is enabled: ranks may differ in that
                collectives_here().barrier()

    def warning_once(self, msg: object, *args: object, **kwargs: Anything) -> None:
        """Warn, unless this logger has warned in the same words."""
        said: set[str] = self.__dict__.setdefault("_said", set())
        words = repr((msg, args))
        if words not in said:
            said.add(words)
            kwargs.setdefault("stacklevel", 3)  # the caller of this, not this
            self.warning(msg, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.logger.name, self.logger.level)


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """The logger of that name, for code that runs on several ranks.

    Args:
        name: as for `logging.getLogger`.
        log_level: its level; None takes ACCELERATE_LOG_LEVEL, else leaves it. No other logger's
            level is changed, the root's included.
    """
    level = log_level or environment().get("ACCELERATE_LOG_LEVEL")
    logger = logging.getLogger(name)
    if level:
        logger.setLevel(level.upper())
    return MultiProcessAdapter(logger, {})


def _rebuilt(name: str, level: int) -> MultiProcessAdapter:
    """The logger in another process, with the level that it had in the first."""
    adapter = MultiProcessAdapter(logging.getLogger(name), {})
    if level != logging.NOTSET:
        adapter.setLevel(level)
    return adapter
