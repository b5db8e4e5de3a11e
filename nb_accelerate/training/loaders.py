"""Loaders: each rank's share of a DataLoader, on its device, with the same shuffle everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from torch.utils.data import DataLoader

from nb_accelerate.errors import SpecError

from .batches import batch_size_of, on_device
from .draws import random_states
from .models import itself
from .passes import Pass
from .positions import Journey, Rounds, described, ended, start_at
from .reading import Start, skipping
from .rng import of_rank_0, synchronize
from .samplers import SeedableRandomSampler
from .sharing import (
    DataLoaderConfiguration,
    Sharding,
    draws_by_torch_alone,
    generators_of,
    index_sampler_of,
    samplers_of,
)
from .stateful import batches_told_by, has_own_state, has_sampler_state, is_stateful
from .streams import IterableDatasetShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from .batches import Counted
    from .dispatching import DispatchReader
    from .draws import RandomStates
    from .gradient_state import GradientState
    from .nested import Anything, Nested
    from .passes import Passes
    from .reading import ShareReader

__all__ = [
    "DataLoaderConfiguration",
    "DataLoaderStateMixin",
    "PreparedLoader",
    "Sharding",
    "batch_size_of",
    "on_device",
]

T_co = TypeVar("T_co", covariant=True)


class DataLoaderStateMixin:
    """What Accelerate's loaders tell of the pass under way."""

    end_of_dataloader = False
    remainder = -1

    def begin(self) -> None:
        """Accelerate's name for what iterating does by itself."""

    def end(self) -> None:
        """End the pass under way, as leaving the loop does."""

    def reset(self) -> None:
        """Accelerate's name for what iterating does by itself."""


class PreparedLoader(DataLoaderStateMixin, DataLoader[T_co], Generic[T_co]):
    """A DataLoader's share of one rank.

    It looks one batch ahead: that batch goes to the device while the current one is computed, and
    the last one is known as the last while it is in use. What travels of it by pickle is the
    loader that was prepared, for the process where it arrives has another share.

    Attributes:
        base_dataloader: what was prepared.
        skip_batches: as many of this rank's are left out at the beginning of each pass.
        use_stateful_dataloader: whether torchdata's StatefulDataLoader reads.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        loader: DataLoader[T_co],
        reader: ShareReader | DispatchReader,
        passes: Callable[[], Passes],
        sharding: Sharding | None = None,
        place: Callable[[Nested], Nested] | None = None,
    ) -> None:
        # DataLoader's own constructor is not called: the reader's twin is the loader that works.
        self.base_dataloader = loader
        self.skip_batches = 0
        self._reader = reader
        self._twin: DataLoader[T_co] = reader.twin
        self._passes = passes
        self._sharding = sharding
        self._place = place or itself
        self._journey = Journey()
        self._newest_state: dict[str, Any] | None = None

    @property  # type: ignore[misc]  # object's can be set
    def __class__(self) -> type:
        """What its twin is, for `isinstance`: a StatefulDataLoader, or the user's own class."""
        twin = self.__dict__.get("_twin")
        return type(self) if twin is None or type(twin) is DataLoader else type(twin)

    def __getattr__(self, name: str) -> Anything:
        if name in ("base_dataloader", "_twin"):  # not yet there: while it is being copied
            raise AttributeError(name)
        unshared = ("dataset", "batch_size", "collate_fn")
        return getattr(self.base_dataloader if name in unshared else self._twin, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self.unprepared,)

    def __len__(self) -> int:
        return max(0, len(self._reader) - self.skip_batches)

    # ------------------------------------------------------------ what it is
    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether torchdata's StatefulDataLoader reads."""
        return is_stateful(self._twin)

    @property
    def gradient_state(self) -> GradientState:
        """Accelerate's view on the passes under way."""
        from .gradient_state import GradientState  # it stands on the accumulation of gradients

        return GradientState()

    @property
    def total_batch_size(self) -> int:
        """Samples that all processes together take at a time."""
        size: int = getattr(index_sampler_of(self.base_dataloader), "batch_size", None) or 1
        if self._sharding is None or self._sharding.config.split_batches:
            return size
        return size * self._sharding.ranks[0]

    @property
    def total_dataset_length(self) -> int:
        """Samples of the whole dataset."""
        return len(cast("Any", self.dataset))

    @property
    def end_of_dataloader(self) -> bool:  # type: ignore[override]  # theirs is a plain attribute
        """Whether the newest batch was the last of its pass."""
        current = self._journey.current
        return current is not None and current.is_last

    @property
    def remainder(self) -> int:  # type: ignore[override]
        """Samples in the last round of all ranks, 0 when it is full; -1 if that is not known."""
        drops = getattr(index_sampler_of(self.base_dataloader), "drop_last", False)
        try:
            return -1 if drops else self.total_dataset_length % self.total_batch_size
        except TypeError:  # a stream without length
            return -1

    @property
    def iteration(self) -> int:
        """Passes begun so far; the epoch that the samplers are told."""
        return self._journey.iteration

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        self._journey.iteration = epoch

    # ------------------------------------------------------------ iterating
    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]  # we give a plain iterator
        passes, current = self._passes(), Pass(loader=self)
        passes.begin(current)
        try:
            start = self._journey.next_start(self.skip_batches)
            self._tell(start.epoch)
            generators = generators_of(self._twin)
            if start.random is None:
                self._synchronize(generators)
            random = start.random or self._random_states()
            states = start.generators or tuple(one.get_state() for one in generators)
            self._journey.begin(current, start, (random, states))
            if self._draws_alike:
                start = replace(start, alike=random)
            yield from self._batches(current, self._reader.begin(start))
        finally:
            passes.end(current)

    def _batches(self, current: Pass, source: Iterator[Counted]) -> Iterator[T_co]:
        place, upcoming = self._place, next(source, None)
        ahead = place(upcoming.batch) if upcoming is not None else None
        while upcoming is not None:
            batch, (_, current.size, current.real, self._newest_state) = ahead, upcoming
            upcoming = next(source, None)
            ahead = place(upcoming.batch) if upcoming is not None else None
            current.is_last = upcoming is None
            current.taken += 1
            yield cast("T_co", batch)

    def _synchronize(self, generators: Sequence[torch.Generator]) -> None:
        """Let all ranks draw alike in the pass that begins."""
        if self._sharding is not None:
            synchronize(self._sharding.rng_types, generators, self._sharding.collectives)

    @property
    def _draws_alike(self) -> bool:
        """Whether the ranks all walk through a stream, which must give each of them the same."""
        shared = isinstance(self._twin.dataset, IterableDatasetShard)
        return shared and self._sharding is not None and self._sharding.collectives.world_size > 1

    def _random_states(self) -> RandomStates:
        """What the order of the pass that begins is drawn from."""
        states = random_states(torchs_alone=draws_by_torch_alone(self._twin))
        if self._sharding is not None and self._draws_alike:
            return of_rank_0(states, self._sharding.collectives)
        return states

    def end(self) -> None:
        """End the pass under way, as leaving the loop does."""
        if self._journey.current is not None:
            self._passes().end(self._journey.current)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass tells the samplers and the dataset."""
        resumed = self._journey.resumed
        if resumed is not None and resumed.epoch != epoch:
            self._journey.resumed = None
        self._journey.iteration = epoch
        self._tell(epoch)

    def _tell(self, epoch: int) -> None:
        for one in (*samplers_of(self._twin), self._twin.dataset):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def skipping(self, num_batches: int) -> PreparedLoader[T_co]:
        """The same loader, whose passes leave out their first batches. It shares its epochs."""
        twin: PreparedLoader[T_co] = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.skip_batches = self.skip_batches + num_batches
        return twin

    @property
    def unprepared(self) -> DataLoader[T_co]:
        """What was prepared, without the batches that are left out."""
        return skipping(self.base_dataloader, self.skip_batches * self._rounds.batches)

    # ------------------------------------------------------------ where it is
    def position(self) -> dict[str, Any]:
        """Where its pass is, or its next one: plain data for `restore`. Asks no other rank.

        It counts the batches handed out to this rank in the pass, and says how many samples of all
        ranks each round of these was. With another number of ranks, or another batch size,
        `restore` leaves out that many samples of the whole order, and shares out the rest anew.
        """
        where = self._journey.where(self.skip_batches, generators_of(self._twin))
        return described(where, self._rounds, next((s.initial_seed for s in self._seeded), None))

    def restore(self, position: Mapping[str, Any]) -> None:
        """Let the next pass give what was left at `position`, and the ones after it be whole.

        The order is drawn again from what it was drawn from then. That does not count: random
        generators are left as they are.
        """
        start = start_at(position, self._rounds)
        for sampler in self._seeded:
            sampler.initial_seed = position["seed"]
        if start.random is None:  # between two passes: the next one draws from there
            for generator, state in zip(generators_of(self._twin), start.generators, strict=False):
                generator.set_state(state)
        self._journey.resume(start)

    @property
    def _rounds(self) -> Rounds:
        size = getattr(index_sampler_of(self.base_dataloader), "batch_size", None)
        if self._sharding is None:
            return Rounds(size, 1)
        return Rounds(size, 1 if self._sharding.config.split_batches else self._sharding.ranks[0])

    @property
    def _seeded(self) -> list[SeedableRandomSampler]:
        return [s for s in samplers_of(self._twin) if isinstance(s, SeedableRandomSampler)]

    def state_dict(self) -> dict[str, Any]:
        """Where it is; of a stateful loader, torchdata's state at the batch handed out last."""
        if not is_stateful(self._twin):
            return {"position": self.position()}
        state = self._newest_state or self._twin.state_dict()  # type: ignore[attr-defined]
        own = {} if self._sharding is None else {"position": self.position()}
        return {**state, "_iterator_finished": self.end_of_dataloader, **own}

    @property
    def dl_state_dict(self) -> dict[str, Any]:
        """Accelerate's name for it."""
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass give what was left; a whole one where the last batch was reached."""
        self._newest_state = None
        position = state.get("position")
        if not is_stateful(self._twin):
            self.restore(_required(position))
        elif position is not None and not has_own_state(state):
            self.restore(ended(position) if state["_iterator_finished"] else position)
        elif not has_own_state(state) and not has_sampler_state(state):
            # A count is all that it tells. torchdata's samplers would not be told of it.
            done = 0 if state.get("_iterator_finished") else batches_told_by(state)
            self._journey.resume(Start(epoch=self.iteration, skipped=done))
        else:
            theirs = {name: value for name, value in state.items() if name != "position"}
            self._twin.load_state_dict(theirs)  # type: ignore[attr-defined]
            told = 0 if state.get("_iterator_finished") else batches_told_by(state)
            self._journey.resume(Start(epoch=self.iteration, told=told))


def _required(position: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if position is None:
        raise SpecError(
            "load_state_dict was given a state without a position, as StatefulDataLoader makes it, "
            "but this loader is none. Prepare it with "
            "DataLoaderConfiguration(use_stateful_dataloader=True)."
        )
    return position
