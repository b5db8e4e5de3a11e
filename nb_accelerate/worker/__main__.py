"""A rank as an interpreter of its own: the start method "spawn"."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, cast

from nb_accelerate.channel import Channel
from nb_accelerate.worker import surroundings
from nb_accelerate.worker.group import open_store
from nb_accelerate.worker.rank import Station, serve

if TYPE_CHECKING:
    from nb_accelerate.messages import TakeSeat
    from nb_accelerate.plan import Seat


def main() -> None:
    """Take the seat that comes by the descriptor named in the arguments."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    surroundings.reset_signals()
    message, descriptors = channel.receive()
    offer = cast("TakeSeat", message)
    stdout, stderr, *listener = descriptors
    # Held until this process ends: the others meet here.
    store = open_store(offer.rendezvous, listener[0]) if listener else None
    station = Station(
        seat=cast("Seat", offer.seat),
        environment=surroundings.environment(),
        rendezvous=offer.rendezvous,
        stdout=stdout,
        stderr=stderr,
        scratch=offer.scratch,
        keepsake=store,
    )
    serve(channel, station)


if __name__ == "__main__":
    main()
