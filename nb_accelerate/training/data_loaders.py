"""Accelerate's classes and functions of loaders, by its names and with its arguments."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import DataLoader

from .ambient import collectives_here, passes_here
from .batches import Placer
from .dispatching import DispatchReader
from .loaders import PreparedLoader
from .reading import ShareReader, skipping
from .rng import asked_rng_types, synchronize
from .samplers import SeedableRandomSampler, SharedShuffle
from .sharing import (
    DataLoaderConfiguration,
    Sharding,
    index_sampler_of,
    samplers_of,
    share_of,
    whole_of,
)
from .stateful import stateful_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from .nested import Anything
    from .passes import Passes

__all__ = [
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "SkipDataLoader",
    "get_sampler",
    "prepare_data_loader",
    "prepare_loader",
    "skip_first_batches",
]

T_co = TypeVar("T_co", covariant=True)


class DataLoaderShard(PreparedLoader[T_co]):
    """A loader of which every rank reads its share.

    `prepare` makes it of another loader. Made by hand it reads all, and adds to a DataLoader what
    it tells of its passes.

    Args:
        dataset: for DataLoader.
        device: where batches go to; None leaves them.
        rng_types: random generators that all ranks take from rank 0 when a pass begins.
        synchronized_generator: what "generator" means among these.
        skip_batches: as many are left out at the beginning of each pass.
        use_stateful_dataloader: read with torchdata's StatefulDataLoader.
        iteration: the first epoch that samplers are told.
        kwargs: for DataLoader.
    """

    rng_types: Sequence[object] | None = None
    synchronized_generator: torch.Generator | None = None

    def __init__(  # noqa: PLR0913  # upstream's signature
        self,
        dataset: Anything,
        device: torch.device | None = None,
        rng_types: Sequence[object] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,  # noqa: FBT001, FBT002
        _drop_last: bool = False,  # noqa: FBT001, FBT002
        _non_blocking: bool = False,  # noqa: FBT001, FBT002
        torch_device_mesh: object = None,  # noqa: ARG002
        iteration: int = 0,
        **kwargs: Anything,
    ) -> None:
        base = _made(dataset, kwargs, stateful=use_stateful_dataloader)
        place = Placer(device, non_blocking=_non_blocking) if device is not None else None
        super().__init__(base, ShareReader(base), passes_here, place=place)
        self.rng_types, self.synchronized_generator = rng_types, synchronized_generator
        self.skip_batches, self.iteration = skip_batches, iteration

    def _synchronize(self, generators: Sequence[torch.Generator]) -> None:
        super()._synchronize(generators)
        if self.rng_types:
            own = self.synchronized_generator
            names = asked_rng_types(self.rng_types)
            synchronize(names, [own] if own is not None else [], collectives_here())


class DataLoaderDispatcher(PreparedLoader[T_co]):
    """A loader that rank 0 reads for all.

    Args:
        dataset: for DataLoader.
        split_batches: rank 0 cuts each batch, instead of dealing out one to each rank.
        skip_batches: as many of each rank's are left out at the beginning of each pass.
        use_stateful_dataloader: read with torchdata's StatefulDataLoader.
        slice_fn: cuts a batch: (data, slice, process_index=, num_processes=).
        iteration: the first epoch that samplers are told.
        kwargs: for DataLoader.
    """

    def __init__(  # noqa: PLR0913  # upstream's signature
        self,
        dataset: Anything,
        split_batches: bool = False,  # noqa: FBT001, FBT002
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,  # noqa: FBT001, FBT002
        _drop_last: bool = False,  # noqa: FBT001, FBT002
        _non_blocking: bool = False,  # noqa: FBT001, FBT002
        slice_fn: Callable[..., Any] | None = None,
        torch_device_mesh: object = None,  # noqa: ARG002
        iteration: int = 0,
        **kwargs: Anything,
    ) -> None:
        base = _made(dataset, kwargs, stateful=use_stateful_dataloader)
        collectives = collectives_here()
        place = Placer(collectives.engine.device, non_blocking=_non_blocking)
        if collectives.world_size == 1:
            super().__init__(base, ShareReader(base), passes_here, place=place)
        else:
            config = DataLoaderConfiguration(split_batches=split_batches)
            sharding = Sharding(config, collectives, slice_fn=slice_fn)
            super().__init__(base, DispatchReader(base, sharding), passes_here, sharding, place)
        self.skip_batches, self.iteration = skip_batches, iteration


class SkipDataLoader(PreparedLoader[T_co]):
    """A loader whose every pass leaves out its first batches.

    Args:
        dataset: for DataLoader.
        skip_batches: how many.
        use_stateful_dataloader: read with torchdata's StatefulDataLoader.
        kwargs: for DataLoader.
    """

    def __init__(
        self,
        dataset: Anything,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,  # noqa: FBT001, FBT002  # upstream's order
        **kwargs: Anything,
    ) -> None:
        base = _made(dataset, kwargs, stateful=use_stateful_dataloader)
        super().__init__(base, ShareReader(base), passes_here)
        self.skip_batches = skip_batches


def _made(dataset: Anything, options: dict[str, Any], *, stateful: bool) -> DataLoader[Any]:
    return stateful_loader(dataset, **options) if stateful else DataLoader(dataset, **options)


# ---------------------------------------------------------------- preparing
def prepare_loader(
    loader: DataLoader[T_co],
    sharding: Sharding,
    passes: Callable[[], Passes],
    device: torch.device | None,
) -> PreparedLoader[T_co]:
    """This rank's share of `loader`; `device` None leaves its batches where they are."""
    config, collectives = sharding.config, sharding.collectives
    place = Placer(device, non_blocking=config.non_blocking) if device is not None else None
    kind: type[PreparedLoader[T_co]]
    kind = DataLoaderDispatcher if config.dispatch_batches else DataLoaderShard
    reader: ShareReader | DispatchReader
    if config.dispatch_batches and 1 < sharding.ranks[0] == collectives.world_size:
        reader = DispatchReader(whole_of(loader, sharding), sharding)
    else:
        reader = ShareReader(share_of(loader, sharding))
    prepared = object.__new__(kind)
    PreparedLoader.__init__(prepared, loader, reader, passes, sharding, place)
    return prepared


def prepare_data_loader(  # noqa: PLR0913  # upstream's signature
    dataloader: DataLoader[T_co],
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,  # noqa: FBT001, FBT002
    put_on_device: bool = False,  # noqa: FBT001, FBT002
    rng_types: Iterable[object] | None = None,
    dispatch_batches: bool | None = None,  # noqa: FBT001
    even_batches: bool = True,  # noqa: FBT001, FBT002
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = False,  # noqa: FBT001, FBT002
    data_seed: int | None = None,
    non_blocking: bool = False,  # noqa: FBT001, FBT002
    use_stateful_dataloader: bool = False,  # noqa: FBT001, FBT002
    torch_device_mesh: object = None,
) -> PreparedLoader[T_co]:
    """This rank's share of a loader, without an Accelerator. One that is prepared stays so.

    Args:
        dataloader: what is shared out.
        device: where batches go to, with `put_on_device`; None is the replica's.
        num_processes: among how many; None is all ranks.
        process_index: whose share; None is this rank's.
        split_batches: as in `DataLoaderConfiguration`.
        put_on_device: whether batches go to a device.
        rng_types: random generators that all ranks take from rank 0 when a pass begins.
        dispatch_batches: as in `DataLoaderConfiguration`.
        even_batches: likewise.
        slice_fn_for_dispatch: cuts what rank 0 has read: (data, slice, process_index=,
            num_processes=).
        use_seedable_sampler: as in `DataLoaderConfiguration`.
        data_seed: likewise.
        non_blocking: likewise.
        use_stateful_dataloader: likewise.
        torch_device_mesh: ranks that differ in its "tp", "cp" or "sp" alone get the same batches.
    """
    if isinstance(dataloader, PreparedLoader):
        return dataloader
    config = DataLoaderConfiguration(
        split_batches=split_batches, dispatch_batches=dispatch_batches, even_batches=even_batches,
        use_seedable_sampler=use_seedable_sampler, data_seed=data_seed, non_blocking=non_blocking,
        use_stateful_dataloader=use_stateful_dataloader,
    )  # fmt: skip
    collectives = collectives_here()
    num = collectives.world_size if num_processes is None else num_processes
    index = collectives.rank if process_index is None else process_index
    sharding = Sharding(
        config, collectives, _in_mesh(num, index, torch_device_mesh),
        asked_rng_types(rng_types), slice_fn_for_dispatch,
    )  # fmt: skip
    place = (device or collectives.engine.device) if put_on_device else None
    return prepare_loader(dataloader, sharding, passes_here, place)


def _in_mesh(num: int, index: int, mesh: Any) -> tuple[int, int]:  # noqa: ANN401  # torch's or None
    """(how many shares there are, whose this is) where some ranks share theirs."""
    names = getattr(mesh, "mesh_dim_names", None) or ()
    alike = prod(mesh[name].size() for name in names if name in ("tp", "cp", "sp"))
    return num // alike, index // alike


# ---------------------------------------------------------------- skipping
def skip_first_batches(dataloader: DataLoader[T_co], num_batches: int = 0) -> DataLoader[T_co]:
    """The same loader, whose passes leave out their first batches.

    A prepared one counts its rank's batches, and keeps all that it is: its epochs go on in the
    loader that it was made of. Data that has indices is not read to be skipped.
    """
    if isinstance(dataloader, PreparedLoader):
        return dataloader.skipping(num_batches)
    return skipping(dataloader, num_batches)


def get_sampler(dataloader: DataLoader[Any]) -> Anything:
    """The innermost sampler of a loader: the one that shuffles."""
    inner = index_sampler_of(dataloader)
    for inner in samplers_of(dataloader):
        if isinstance(inner, SeedableRandomSampler | SharedShuffle):
            return inner
    return inner
