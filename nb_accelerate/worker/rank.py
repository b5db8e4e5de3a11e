"""One rank, from its first moment to its last: seat, group, function, answer, end."""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

from nb_accelerate import payload
from nb_accelerate.errors import PayloadError
from nb_accelerate.messages import Go, Interrupted, Left, Raised, Ready, Returned
from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.worker import group, stacks, surroundings
from nb_accelerate.worker.farewell import settle_affairs
from nb_accelerate.worker.linux import name_process
from nb_accelerate.worker.outpost import Outpost
from nb_accelerate.worker.rehearsal import rehearse

if TYPE_CHECKING:
    from types import FrameType

    from nb_accelerate.channel import Channel
    from nb_accelerate.messages import Rendezvous
    from nb_accelerate.plan import Seat

__all__ = ["Call", "Station", "serve"]

# (function, args, kwargs, objects whose state goes back to the kernel)
Call = tuple[Callable[..., object], Sequence[object], Mapping[str, object], Sequence[Any]]

# For the kernel to let go; and to give the cell back before this process is taken down.
_PATIENCE_SECONDS = 0.02
_DELAY_SECONDS = 0.003

# What gloo and NCCL say when the rank at the other end has gone: an echo, hardly the cause.
_ECHOES = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Read error",
    "Write error",
    "Socket Timeout",
    "remote process exited",
)


@dataclass(frozen=True, slots=True)
class Station:
    """All that a fresh process needs to become a rank."""

    seat: Seat
    environment: Mapping[str, str]
    rendezvous: Rendezvous
    stdout: int
    stderr: int
    scratch: str
    """Where multiprocessing puts its sockets."""
    call: Call | None = None
    """The call itself, where the process was forked with it in memory."""
    ahead: bool = False
    """No call waits yet."""
    keepsake: object = None
    """Whatever must live as long as the process."""


def serve(channel: Channel, station: Station) -> NoReturn:
    """Be the rank: join, wait for the call, answer it, leave. Never returns."""
    try:
        surroundings.take_output(station.stdout, station.stderr)
        surroundings.set_environment(station.environment)
        surroundings.use_scratch(station.scratch)
        faulthandler.enable(all_threads=False)
        name_process(f"nb-rank-{station.seat.rank}")
        os.register_at_fork(after_in_child=channel.close)
        _attend(channel, station)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The kernel did not want this rank after all, or has gone.
        shutil.rmtree(station.scratch, ignore_errors=True)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the process's outermost frame: print, never vanish
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _attend(channel: Channel, station: Station) -> None:
    seat = station.seat
    with ExitStack() as stack:
        try:
            group.share_threads(seat.num_threads)
            stack.enter_context(group.join(seat, station.rendezvous))
        except Exception as error:  # noqa: BLE001 - whatever it is, the cell must hear of it
            channel.send(*_raised(seat.rank, error, before_call=True))
            return
        # Ranks made ahead do all that can be done before the call comes.
        payload.install_by_value_pickling()
        surroundings.distrust_stale_bytecode()
        outpost = Outpost(channel, seat.rank, station.scratch)
        outpost.start()
        channel.send(Ready(seat.rank, os.getpid()))
        if station.ahead:
            rehearse(seat.device)
        go, descriptors = channel.receive()
        if not isinstance(go, Go):
            return
        outpost.listen(go.stall_seconds)
        answer = _answer(station, go, descriptors, outpost)
        outpost.flush()
        channel.send(*answer)
        settle_affairs()
        outpost.flush()
        channel.send(Left(seat.rank))
        outpost.retire(_PATIENCE_SECONDS)
        time.sleep(_DELAY_SECONDS)


Answer = tuple[Returned | Raised, tuple[int, ...]]


def _answer(station: Station, go: Go, descriptors: tuple[int, ...], outpost: Outpost) -> Answer:
    """Call the function and put what came of it into a message."""
    rank = station.seat.rank
    try:
        surroundings.enter(go)
        group.take_device(station.seat)
        payload.restore_sources(go.sources)
        call = _unpacked(station, go, descriptors)
    except BaseException as error:  # noqa: BLE001 - told to the cell
        return _raised(rank, error, before_call=True)
    gc.freeze()  # what was shipped is not the function's garbage to look through
    try:
        with (
            acting_as(_replica(station.seat, outpost), whole_process=True),
            _Signals(outpost, rank),
        ):
            value = _made(call)
        return _returned(rank, value, call[3])
    except BaseException as error:  # noqa: BLE001 - told to the cell
        return _raised(rank, error)


def _unpacked(station: Station, go: Go, descriptors: tuple[int, ...]) -> Call:
    if go.call is None:
        assert station.call is not None  # noqa: S101 - the fork method gives it
        return station.call
    descriptor = descriptors[0] if descriptors else None
    return cast("Call", payload.unpack(go.call, descriptor, device=station.seat.device))


def _made(call: Call) -> object:
    function, args, kwargs, _ = call
    try:
        return function(*args, **kwargs)
    except SystemExit as leaving:
        # A script's way to say that all is done; anything but 0 is a failure.
        if leaving.code in (None, 0):
            return None
        raise


def _replica(seat: Seat, outpost: Outpost) -> Replica:
    return Replica(
        rank=seat.rank,
        local_rank=seat.local_rank,
        world_size=seat.world_size,
        local_world_size=seat.local_world_size,
        node_rank=seat.node_rank,
        num_nodes=seat.num_nodes,
        device=seat.device,
        mixed_precision=seat.mixed_precision,
        gradient_accumulation_steps=seat.gradient_accumulation_steps,
        reporter=outpost,
    )


class _Signals:
    """An interrupt is a KeyboardInterrupt while the function runs, and nothing before or after.

    So is the end of a loader worker, for which torch puts a handler that raises wherever the main
    thread is: after the function it would raise in the midst of our own report.
    """

    def __init__(self, outpost: Outpost, rank: int) -> None:
        self._outpost = outpost
        self._rank = rank

    def __enter__(self) -> None:
        signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._outpost.post(Interrupted(self._rank))
        raise KeyboardInterrupt


def _returned(rank: int, value: object, write_back: Sequence[Any]) -> Answer:
    _finish_device_work()
    states = [thing.state_dict() for thing in write_back] if rank == 0 else []
    complaint = ""
    try:
        packed = payload.pack_value(value, states)
    except PayloadError as error:
        complaint = str(error)
        packed = payload.pack_value(None, states)  # what was trained is not lost with the value
    message = Returned(rank, packed.parcel, complaint, time.monotonic(), _peak_memory_bytes())
    return message, _descriptors(packed.fd)


def _raised(rank: int, error: BaseException, *, before_call: bool = False) -> Answer:
    now = time.monotonic()
    trace = error.__traceback__
    frames = stacks.frames_of_traceback(trace)
    packed = payload.pack_error(error)
    message = Raised(
        rank=rank,
        error=packed.parcel if packed else None,
        type_name=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        text=_text(error),
        traceback=_printed(error),
        stack=stacks.user_frames(frames),
        call=stacks.collective_of(frames),
        echo=_is_echo(error),
        time=now,
        before_call=before_call,
    )
    return message, _descriptors(packed.fd if packed else None)


def _is_echo(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, tells that a peer has gone."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RuntimeError) and any(echo in _text(seen) for echo in _ECHOES):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _text(error: BaseException) -> str:
    """`str(error)`, whatever its class makes of that."""
    text = payload.attempt(lambda: str(error))
    return text if isinstance(text, str) else "(its text cannot be had)"


def _printed(error: BaseException) -> str:
    """The traceback from the function's own first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = payload.attempt(lambda: traceback.format_exception(type(error), error, trace))
    return "".join(lines) if isinstance(lines, list) else "".join(traceback.format_tb(trace))


def _descriptors(descriptor: int | None) -> tuple[int, ...]:
    return () if descriptor is None else (descriptor,)


def _finish_device_work() -> None:
    """Wait for what the function has queued on its accelerator, so that it is not cut off."""
    cuda: Callable[[], bool] | None = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if cuda is not None and cuda():
        import torch

        torch.accelerator.synchronize()


def _peak_memory_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
