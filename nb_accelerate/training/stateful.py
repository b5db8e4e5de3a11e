"""Stateful loaders: torchdata's StatefulDataLoader, where it is asked for."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import BatchSampler, DataLoader

from nb_accelerate.errors import TorchdataMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "batches_told_by",
    "has_own_state",
    "has_sampler_state",
    "is_stateful",
    "require_torchdata",
    "stateful_loader",
    "stateful_twin",
]

T_co = TypeVar("T_co", covariant=True)

_OLDEST = "0.8"


def require_torchdata() -> None:
    """Raise `TorchdataMissing` unless there is one with a StatefulDataLoader."""
    # find_spec of a part would import the package, which the part has but older ones do not.
    if find_spec("torchdata") is None:
        raise TorchdataMissing(
            "use_stateful_dataloader=True was asked for, but torchdata is not installed. Install "
            f"torchdata {_OLDEST} or newer. Prepared loaders can be resumed without it, too."
        )
    if find_spec("torchdata.stateful_dataloader") is None:
        raise TorchdataMissing(
            "use_stateful_dataloader=True was asked for, but the torchdata that is installed has "
            f"no StatefulDataLoader. Install {_OLDEST} or newer."
        )


def is_stateful(loader: object) -> bool:
    """Whether it is a StatefulDataLoader."""
    return hasattr(loader, "snapshot_every_n_steps") and hasattr(loader, "next_iter_state")


def stateful_loader(*args: Any, **kwargs: Any) -> DataLoader[Any]:  # noqa: ANN401  # theirs
    """A StatefulDataLoader of these arguments.

    Raises:
        TorchdataMissing: it is not there.
    """
    require_torchdata()
    from torchdata.stateful_dataloader import (  # type: ignore[import-untyped]  # optional
        StatefulDataLoader,
    )

    with warnings.catch_warnings():
        # torchdata calls what newer torch has deprecated; the user can do nothing about it.
        warnings.filterwarnings("ignore", message=".*set_vital", category=UserWarning)
        made: DataLoader[Any] = StatefulDataLoader(*args, **kwargs)
    return made


def stateful_twin(loader: DataLoader[T_co]) -> DataLoader[T_co]:
    """A StatefulDataLoader that reads as `loader` does; one that is such already as it is."""
    if is_stateful(loader):
        return loader
    names = (
        "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
        "multiprocessing_context", "generator", "persistent_workers", "prefetch_factor",
    )  # fmt: skip
    kept = {name: getattr(loader, name) for name in names}
    return stateful_loader(loader.dataset, **kept, **_sampling_of(loader))


def _sampling_of(loader: DataLoader[Any]) -> dict[str, Any]:
    if loader.batch_sampler is None:
        own = {} if _is_stream(loader) else {"sampler": loader.sampler}
        return {"batch_size": None, **own}
    if _is_stream(loader):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None:
        size = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        return {"sampler": loader.sampler, **size}
    return {"batch_sampler": loader.batch_sampler}


def _is_stream(loader: DataLoader[Any]) -> bool:
    return type(loader.sampler).__name__ == "_InfiniteConstantSampler"


# ---------------------------------------------------------------- what a state says
def batches_told_by(state: Mapping[str, Any]) -> int:
    """Batches that had been read when `state` was taken."""
    if "_snapshot" in state:  # with workers
        steps = state["_snapshot"].get("_snapshot_step", 0)
        return int(steps) + int(state.get("_steps_since_snapshot", 0))
    return int(state.get("_num_yielded", 0))


def has_own_state(state: Mapping[str, Any]) -> bool:
    """Whether `state` holds that of a dataset, which counting cannot bring back."""
    if "_snapshot" in state:
        workers = state["_snapshot"].get("_worker_snapshots", {}).values()
        return any(_dataset_states(one) for one in workers)
    return _dataset_states(state)


def has_sampler_state(state: Mapping[str, Any]) -> bool:
    """Whether `state` holds that of a sampler: Accelerate's own samplers keep none."""
    main = state.get("_snapshot", {}).get("_main_snapshot", state)
    return any(main.get(n) is not None for n in ("_index_sampler_state", "_sampler_iter_state"))


def _dataset_states(state: Mapping[str, Any]) -> bool:
    fetcher = state.get("_fetcher_state", state.get("fetcher_state")) or {}
    dataset = state.get("dataset_state", state.get("_dataset_state"))
    return dataset is not None or fetcher.get("dataset_iter_state") is not None
