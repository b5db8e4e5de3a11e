"""GradientState: a view on how an Accelerator accumulates gradients, and on the loader it is in."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from nb_accelerate.replica import current_replica

from .accumulation import Accumulation
from .states import SharedState

if TYPE_CHECKING:
    from nb_accelerate.replica import Replica

    from .passes import Passes
    from .plugins import GradientAccumulationPlugin

__all__ = ["GradientState", "passes_here", "share_accumulation"]


class GradientState:
    """The accumulation of the newest Accelerator of this replica; without one, of bare loaders.

    Args:
        gradient_accumulation_plugin: how to accumulate from now on.
    """

    _shared_state: ClassVar[SharedState] = SharedState()
    _own: Accumulation | None = None

    def __init__(
        self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None
    ) -> None:
        if gradient_accumulation_plugin is not None:
            self._accumulation.follow(gradient_accumulation_plugin)
        _shared_accumulation(current_replica())

    @classmethod
    def _of(cls, accumulation: Accumulation) -> GradientState:
        """The view on one Accelerator's own."""
        state = cls.__new__(cls)
        state._own = accumulation  # noqa: SLF001  # this is its constructor
        return state

    @staticmethod
    def _reset_state() -> None:
        GradientState._shared_state.clear()

    @property
    def _accumulation(self) -> Accumulation:
        return self._own or _shared_accumulation(current_replica())

    def __repr__(self) -> str:
        return (
            f"<GradientState: num_steps={self.num_steps}, sync_gradients={self.sync_gradients}, "
            f"end_of_dataloader={self.end_of_dataloader}>"
        )

    @property
    def initialized(self) -> bool:
        """Whether there is something to show."""
        return self._own is not None or bool(self._shared_state)

    # ------------------------------------------------------------ windows
    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends its window, so that the optimizer acts."""
        return self._accumulation.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, sync: bool) -> None:
        self._accumulation.sync_gradients = sync

    def _set_sync_gradients(self, sync_gradients: bool) -> None:  # noqa: FBT001  # upstream's
        self.sync_gradients = sync_gradients

    @property
    def num_steps(self) -> int:
        """Micro-batches in a full window."""
        return self._accumulation.num_steps

    @num_steps.setter
    def num_steps(self, steps: int) -> None:
        self._accumulation.num_steps = steps

    @property
    def adjust_scheduler(self) -> bool:
        """Kept for its name; a prepared schedule always counts updates."""
        return self._accumulation.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a loader ends a window."""
        return self._accumulation.sync_with_dataloader

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """What of this is not Accelerate's default, by the plugin's names."""
        return self._accumulation.rule().to_kwargs()

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Whether XLA has reduced the gradients; False elsewhere."""
        return False

    # ------------------------------------------------------------ loaders
    @property
    def active_dataloader(self) -> Any:  # noqa: ANN401  # whatever the user prepared
        """The innermost prepared loader that is being iterated; None outside of all loops."""
        current = self._accumulation.passes.current
        return None if current is None else current.loader

    @property
    def dataloader_references(self) -> list[Any]:
        """None and all loaders that are being iterated, innermost last."""
        return [None, *(one.loader for one in self._accumulation.passes)]

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being iterated."""
        return self._accumulation.passes.current is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is the last of the innermost loader."""
        return self._accumulation.passes.at_end

    @property
    def remainder(self) -> int:
        """Samples of the last round that are no repetitions, over all ranks; -1 if not known."""
        return getattr(self.active_dataloader, "remainder", -1)


def share_accumulation(replica: Replica, accumulation: Accumulation) -> None:
    """Let `GradientState()` show it on this replica, for as long as its Accelerator lives."""
    replica.shared.setdefault("GradientState", {})["newest"] = weakref.ref(accumulation)


def passes_here() -> Passes:
    """The passes of the current replica, for loaders that no Accelerator prepared."""
    return _shared_accumulation(current_replica()).passes


def _shared_accumulation(replica: Replica) -> Accumulation:
    home = replica.shared.setdefault("GradientState", {})
    newest: Accumulation | None = home["newest"]() if "newest" in home else None
    if newest is None:
        newest = home.setdefault("bare", Accumulation())
    return newest
