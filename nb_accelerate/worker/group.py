"""The process group that is ready before the function runs."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from nb_accelerate.worker.linux import without_name_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadpoolctl import ThreadpoolController

    from nb_accelerate.messages import Rendezvous
    from nb_accelerate.plan import Seat

__all__ = ["join", "open_store", "share_threads", "take_device", "thread_pools"]

_STORE_SECONDS = 60
# Apart from the keys that a function's own init_process_group("env://") uses in the same store.
_PREFIX = "nb_accelerate"


def open_store(rendezvous: Rendezvous, listener: int) -> object:
    """The run's TCPStore, on a socket that already listens: whoever comes early just waits."""
    import torch.distributed as dist

    with without_name_servers():
        return dist.TCPStore(  # type: ignore[attr-defined]  # public, though not marked so
            rendezvous.host,
            rendezvous.port,
            None,
            is_master=True,
            timeout=timedelta(seconds=_STORE_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listener,
        )


def share_threads(count: int) -> None:
    """Bound the threads of one operation: torch's own pool, and BLAS and OpenMP beneath numpy."""
    import torch

    torch.set_num_threads(count)
    thread_pools().limit(limits=count)


@functools.cache
def thread_pools() -> ThreadpoolController:
    """The thread pools of the libraries that are loaded; looking for them takes some 10 ms."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # type: ignore[no-untyped-call]  # it has no types


def take_device(seat: Seat) -> None:
    """Make the seat's device the current one.

    Apart from `join`, for it takes some hundred MB of the device, which ranks that wait for a call
    must leave to others.
    """
    import torch

    if seat.device.startswith(("cuda", "xpu")):
        torch.accelerator.set_device_index(int(seat.device.partition(":")[2] or 0))


@contextmanager
def join(seat: Seat, rendezvous: Rendezvous) -> Iterator[None]:
    """Be in the run's default group; collectives work within the block.

    The group is not destroyed at the end: that costs 20 ms, and the end of the process closes the
    connections, which is what wakes a rank that still waits for this one.
    """
    import torch.distributed as dist

    with without_name_servers():
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, though not marked so
            rendezvous.host, rendezvous.port, timeout=timedelta(seconds=_STORE_SECONDS)
        )
    dist.init_process_group(
        seat.backend,
        store=dist.PrefixStore(_PREFIX, store),  # type: ignore[attr-defined]  # likewise
        rank=seat.rank,
        world_size=seat.world_size,
    )
    with _giving_way():
        yield


@contextmanager
def _giving_way() -> Iterator[None]:
    """Let code that makes its own default group have it, instead of "initialized twice".

    Scripts and libraries written for torchrun call init_process_group themselves; the first such
    call replaces the group that was made for them.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    original = dist.init_process_group
    ours = distributed_c10d._get_default_group()  # noqa: SLF001 - there is no public getter

    @functools.wraps(original)
    def init_process_group(*args: object, **kwargs: object) -> None:
        if dist.is_initialized() and distributed_c10d._get_default_group() is ours:  # noqa: SLF001
            dist.destroy_process_group()
        original(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came

    _set_everywhere(init_process_group)
    try:
        yield
    finally:
        _set_everywhere(original)


def _set_everywhere(function: Callable[..., None]) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for module in (dist, distributed_c10d):
        setattr(module, "init_process_group", function)  # noqa: B010 - replaced on purpose
