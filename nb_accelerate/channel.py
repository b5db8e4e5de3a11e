"""Channel: messages and file descriptors between two processes of one user, over a socketpair.

A frame is a 6-byte header (body length as little-endian uint32, number of descriptors as uint16)
and a pickle. Descriptors travel with the header's bytes (SCM_RIGHTS), so their order is the
frames' order. No port is opened and nothing needs to authenticate; end of file means that the
other side is gone.
"""

from __future__ import annotations

import array
import os
import pickle
import select
import socket
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Channel", "Received"]

Received = tuple[object, tuple[int, ...]]

_HEADER = struct.Struct("<IH")
_CHUNK = 1 << 16
# Linux passes at most 253 descriptors with one piece of data (SCM_MAX_FD).
_DESCRIPTORS_A_BYTE = 253
_ANCILLARY_BYTES = socket.CMSG_LEN(_DESCRIPTORS_A_BYTE * array.array("i").itemsize)


class Channel:
    """One end of the pair.

    `send` may be called from any thread; receiving belongs to one thread at a time.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()
        self.at_end = False
        """The other side has gone, and all that it sent has been handed out."""

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel and the other end, still a plain socket, to be handed to a process."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send one message; blocks while the other side does not read.

        Raises:
            OSError: the other side is gone (BrokenPipeError, ConnectionResetError).
        """
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        header = _HEADER.pack(len(body), len(descriptors))
        with self._sending:
            sent = 0
            while sent * _DESCRIPTORS_A_BYTE < len(descriptors):
                some = descriptors[sent * _DESCRIPTORS_A_BYTE :][:_DESCRIPTORS_A_BYTE]
                sent += socket.send_fds(self._sock, [header[sent : sent + 1]], some)
            self._sock.sendall(header[sent:] + body)

    def receive(self) -> Received:
        """The next message; blocks until it is there.

        Raises:
            EOFError: the other side is gone.
        """
        while (frame := self._next_frame()) is None:
            if not self._read(0):
                raise EOFError
        return frame

    def available(self) -> Iterator[Received]:
        """The messages that have arrived; never blocks. Sets `at_end` when no more can come."""
        while not self.at_end:
            try:
                more = self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            self.at_end = not more
        while (frame := self._next_frame()) is not None:
            yield frame

    def has_news(self) -> bool:
        """Whether something has arrived that nobody has taken yet."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(self._bytes or poll.poll(0))

    def is_abandoned(self) -> bool:
        """Whether the other side has gone, be there unread messages of it or not."""
        hung_up = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
        poll = select.poll()
        poll.register(self._sock, hung_up)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close this end, and descriptors that arrived and nobody took."""
        self._sock.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _read(self, flags: int) -> bool:
        try:
            # Not socket.recv_fds: before Python 3.14 it takes flags and does not pass them on.
            data, ancillary, _, _ = self._sock.recvmsg(_CHUNK, _ANCILLARY_BYTES, flags)
        except ConnectionResetError:
            return False
        except OSError:
            if self._sock.fileno() >= 0:
                raise
            return False  # closed on this side, by another thread
        self._bytes += data
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array.array("i")
                descriptors.frombytes(
                    content[: len(content) // descriptors.itemsize * descriptors.itemsize]
                )
                self._descriptors.extend(descriptors)
        return bool(data)

    def _next_frame(self) -> Received | None:
        if len(self._bytes) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._bytes)
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        message = pickle.loads(memoryview(self._bytes)[_HEADER.size : end].tobytes())
        del self._bytes[:end]
        return message, tuple(self._descriptors.popleft() for _ in range(count))
