"""The rehearsal: what a rank made ahead does while it waits for its call.

A forked process copies each page when it first writes to it, and Python writes wherever it looks,
for it counts references. Having done the work of a launch once, for nothing, a rank has those pages
and its group's connections before the clock runs: that saves a launch two milliseconds.
"""

from __future__ import annotations

import logging

from nb_accelerate import payload
from nb_accelerate.worker import farewell, stacks

__all__ = ["rehearse"]


def rehearse(device: str) -> None:
    """Take a call, work with the others, answer; every rank of the group must."""
    with payload.pack_call(lambda: None, (), {}, ()) as call:  # by value, as a cell's function
        payload.unpack(call.parcel, None, device=device)
    _meet()
    with payload.pack_value(None, []):
        stacks.frames_of_main()
    farewell.has_open_files()
    _look_at_loggers()


def _look_at_loggers() -> None:
    """As `logging.shutdown` will, which would close them."""
    for reference in logging._handlerList:  # type: ignore[attr-defined]  # noqa: SLF001
        if handler := reference():
            handler.acquire()
            handler.flush()
            handler.release()


def _meet() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(1))
