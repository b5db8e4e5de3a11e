"""Draws: what the process's random generators are at, to draw again what was drawn before."""

from __future__ import annotations

import pickle
import random
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "Apart",
    "RandomStates",
    "go_on_from",
    "packed",
    "plain",
    "random_states",
    "replayed",
    "unpacked",
]

SIZE = 16 * 1024
"""Bytes that any random states fit into: 5056 of torch's, 2500 of numpy's, pickled numbers."""

RandomStates: TypeAlias = dict[str, Any]
"""By "torch" (the CPU's), "python" and "numpy", where these count."""


def random_states(*, torchs_alone: bool = False) -> RandomStates:
    """What `random`, numpy and torch draw from next.

    Args:
        torchs_alone: leave out the others, of which numpy's takes a while to read.
    """
    states: RandomStates = {"torch": torch.get_rng_state()}
    if not torchs_alone:
        states |= {"python": random.getstate(), "numpy": np.random.get_state()}
    return states


def plain(states: RandomStates) -> RandomStates:
    """`states` as data that torch.load takes without running code."""
    if "numpy" not in states:
        return states
    name, keys, *rest = states["numpy"]
    return {**states, "numpy": (name, torch.from_numpy(np.asarray(keys, np.int64)), *rest)}


def packed(states: RandomStates) -> torch.Tensor:
    """`states` as bytes, as many whatever they are: (SIZE,)."""
    content = pickle.dumps({**states, "torch": states["torch"].numpy()})
    page = np.zeros(SIZE, np.uint8)
    page[: len(content)] = np.frombuffer(content, np.uint8)
    return torch.from_numpy(page)


def unpacked(page: torch.Tensor) -> RandomStates:
    """What `packed` was given."""
    states: RandomStates = pickle.loads(page.numpy().tobytes())
    return {**states, "torch": torch.from_numpy(states["torch"])}


def go_on_from(states: RandomStates) -> None:
    """Draw from there."""
    torch.set_rng_state(states["torch"])
    if "python" in states:
        version, numbers, gauss = states["python"]
        random.setstate((version, tuple(numbers), gauss))
    if "numpy" in states:
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, np.asarray(keys, np.uint32), *rest))


@contextmanager
def replayed(states: RandomStates) -> Iterator[None]:
    """Within it, what was drawn from `states` on is drawn again; it does not count afterwards."""
    now = random_states()
    go_on_from(states)
    try:
        yield
    finally:
        go_on_from(now)


class Apart:
    """Someone who draws from random states of his own, not from where the process is.

    Args:
        states: that he begins with.
    """

    def __init__(self, states: RandomStates) -> None:
        self._states = states

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Within it, he draws."""
        now = random_states()
        go_on_from(self._states)
        try:
            yield
        finally:
            self._states = random_states()
            go_on_from(now)

    def begun(self, source: Iterable[Any]) -> tuple[Iterator[Any], list[Any], list[str]]:
        """He begins with `source`, a loader, which seeds its workers and gives its first item.

        Returns:
            The iterator, the item if there is one, and the kinds that giving it has drawn from.
        """
        before = self._states
        with self.drawing():
            iterator = iter(source)
            seeded = torch.get_rng_state()
            first = list(islice(iterator, 1))
        return iterator, first, _differing({**before, "torch": seeded}, self._states)

    def went_on(self, source: Iterator[Any], first: list[Any]) -> Iterator[Any]:
        """`first`, and what `source` gives after it."""
        while first:
            yield from first
            with self.drawing():
                first = list(islice(source, 1))


def draw_one(kinds: Iterable[str]) -> None:
    """Let the process's generators go on by one, so that the next to begin there draws others."""
    for kind in kinds:
        _DRAW[kind]()


_DRAW: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.rand(()),
    "python": random.random,
    "numpy": np.random.random,
}


def _differing(some: RandomStates, others: RandomStates) -> list[str]:
    """The kinds that are at other places."""
    keys, position = (some["numpy"][1], others["numpy"][1]), (some["numpy"][2], others["numpy"][2])
    alike = {
        "torch": torch.equal(some["torch"], others["torch"]),
        "python": tuple(some["python"][1]) == tuple(others["python"][1]),
        "numpy": position[0] == position[1] and np.array_equal(*keys),
    }
    return [kind for kind, is_alike in alike.items() if not is_alike]
