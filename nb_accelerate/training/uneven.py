"""Uneven inputs: ranks that have fewer batches than others answer for them, instead of a hang."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from .engine import DistributedType
from .models import original_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from .binding import Binding

__all__ = ["joined"]

_WITHOUT_JOIN = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


@contextmanager
def joined(here: Binding, models: Sequence[nn.Module], even: bool | None) -> Iterator[None]:  # noqa: FBT001
    """Within it, each rank of `models` may run out of batches before the others."""
    kind = here.stance.distributed_type
    if kind in _WITHOUT_JOIN:
        warnings.warn(
            f"Joining uneven inputs is only supported for multi-GPU and multi-CPU data "
            f"parallelism, not for {kind.value}: join_uneven_inputs does nothing.",
            stacklevel=4,
        )
        yield
        return
    fill = here.settings.loaders.even_batches if even is None else even
    with _filled_up(here, even), here.engine.joined([*map(original_of, models)], enable=not fill):
        yield


@contextmanager
def _filled_up(here: Binding, even: bool | None) -> Iterator[None]:  # noqa: FBT001
    """Within it, the last batches of prepared loaders are filled up, or are not."""
    loaders = here.prepared.loaders if even is not None and here.engine.world_size > 1 else []
    streams = [one for one in loaders if isinstance(one.dataset, IterableDataset)]
    if streams:
        warnings.warn(
            f"Overriding even_batches is only supported for map-style datasets: "
            f"{len(streams)} of the prepared loaders read streams and stay as they are.",
            stacklevel=5,
        )
    samplers: list[Any] = [getattr(one, "batch_sampler", None) for one in loaders]
    changed = [(one, one.even_batches) for one in samplers if hasattr(one, "even_batches")]
    for sampler, _ in changed:
        sampler.even_batches = even
    try:
        yield
    finally:
        for sampler, before in changed:
            sampler.even_batches = before
