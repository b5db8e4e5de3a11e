"""Keepsakes: what the user has registered to be saved and loaded with a training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn
from torch.utils.hooks import RemovableHandle

from .files import require_stateful

if TYPE_CHECKING:
    from .files import Stateful

__all__ = ["Keepsakes", "LoadHook", "SaveHook"]

SaveHook: TypeAlias = Callable[[list[nn.Module], list[dict[str, Any]], str], object]
"""Gets the models, their weights and the folder. Weights that it takes out are not written."""

LoadHook: TypeAlias = Callable[[list[nn.Module], str], object]
"""Gets the models and the folder. Models that it takes out are not loaded."""


@dataclass(slots=True, eq=False)
class Keepsakes:
    """The user's objects and hooks, in the order in which they were registered."""

    objects: list[Stateful] = field(default_factory=list)
    save_hooks: OrderedDict[int, SaveHook] = field(default_factory=OrderedDict)
    load_hooks: OrderedDict[int, LoadHook] = field(default_factory=OrderedDict)

    def register(self, *objects: Stateful) -> None:
        """Save and load these, too.

        Raises:
            SpecError: some have no state_dict or load_state_dict; none is registered then.
        """
        require_stateful(objects)
        self.objects.extend(objects)

    def before_saving(self, hook: SaveHook) -> RemovableHandle:
        """Have `hook` called before a checkpoint is written."""
        handle = RemovableHandle(self.save_hooks)
        self.save_hooks[handle.id] = hook
        return handle

    def before_loading(self, hook: LoadHook) -> RemovableHandle:
        """Have `hook` called before a checkpoint is loaded."""
        handle = RemovableHandle(self.load_hooks)
        self.load_hooks[handle.id] = hook
        return handle
