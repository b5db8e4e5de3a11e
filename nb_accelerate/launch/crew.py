"""Crew: the processes of one run as the kernel holds them, however they were started."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nb_accelerate.channel import Channel
from nb_accelerate.errors import PlanError
from nb_accelerate.messages import Rendezvous

if TYPE_CHECKING:
    from nb_accelerate.plan import Seat

__all__ = ["Crew", "RankEnds", "open_ends", "open_listener", "open_scratch"]

_LOOPBACK = "127.0.0.1"
_PIPE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Crew:
    """One run's processes: a channel and two pipes per rank, and the lease on their lives.

    Signals go out and ends of processes come in by `lease`; closing it kills what still runs.
    """

    seats: tuple[Seat, ...]
    channels: tuple[Channel, ...]
    outputs: tuple[tuple[int, int], ...]
    """Descriptors to read each rank's standard output and error from."""
    lease: Channel
    scratch: str
    """A folder that whoever holds the ranks removes when they are gone."""

    def close(self) -> None:
        """Let go of the run."""
        self.lease.close()
        for channel in self.channels:
            channel.close()
        for pair in self.outputs:
            for descriptor in pair:
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class RankEnds:
    """Both ends of what connects the kernel and one rank."""

    channel: Channel
    output: tuple[int, int]
    theirs: tuple[socket.socket, int, int]
    """The rank's: channel, standard output, standard error."""

    def descriptors(self) -> tuple[int, int, int]:
        """The rank's ends as numbers."""
        sock, stdout, stderr = self.theirs
        return sock.fileno(), stdout, stderr

    def close_theirs(self) -> None:
        """The rank has them now."""
        sock, stdout, stderr = self.theirs
        sock.close()
        os.close(stdout)
        os.close(stderr)


def open_scratch(run_id: str) -> str:
    """A private folder for multiprocessing's sockets, which killed loader workers leave there."""
    folder = os.path.join(tempfile.gettempdir(), f"nb_accelerate-{run_id}")  # noqa: PTH118
    os.mkdir(folder, 0o700)  # noqa: PTH102 - a string travels
    return folder


def open_ends() -> RankEnds:
    """What one rank needs."""
    channel, theirs = Channel.pair()
    stdout, stderr = _pipe(), _pipe()
    return RankEnds(channel, (stdout[0], stderr[0]), (theirs, stdout[1], stderr[1]))


def _pipe() -> tuple[int, int]:
    import fcntl

    read, write = os.pipe()
    os.set_blocking(read, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(PermissionError):  # the user's pipes are at their limit; 64 KiB do too
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read, write


def open_listener(port: int = 0) -> tuple[socket.socket, Rendezvous]:
    """A socket that listens on loopback, so that ranks may come before its store is served.

    Raises:
        PlanError: the port that was asked for is taken; says by whom.
    """
    listener = socket.socket()
    if port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOOPBACK, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise PlanError(
            f"use_port={port}, but {_holder_of(port)} holds that port on this machine. "
            "Leave use_port out: a free port is then taken for each launch."
        ) from error
    return listener, Rendezvous(_LOOPBACK, listener.getsockname()[1])


def _holder_of(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass
    return "another process"
