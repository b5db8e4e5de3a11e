"""The keeper: a small process of the template that holds the ranks' rendezvous stores.

A store runs threads, and the template must have none; a rank could hold it, but then its death
would take the store from the others.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from nb_accelerate.worker.group import open_store

if TYPE_CHECKING:
    from nb_accelerate.channel import Channel
    from nb_accelerate.messages import Rendezvous

__all__ = ["CloseStore", "OpenStore", "keep_stores"]


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Serve a store on the listening socket that comes along."""

    number: int
    rendezvous: Rendezvous


@dataclass(frozen=True, slots=True)
class CloseStore:
    """The run has ended."""

    number: int


def keep_stores(channel: Channel) -> NoReturn:
    """Serve until the template leaves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stores: dict[int, object] = {}
    while True:
        try:
            message, descriptors = channel.receive()
        except EOFError:
            os._exit(0)
        match message:
            case OpenStore(number, rendezvous):
                stores[number] = open_store(rendezvous, descriptors[0])
            case CloseStore(number):
                stores.pop(number, None)
            case _:
                raise TypeError(f"The keeper cannot understand {message!r}.")
