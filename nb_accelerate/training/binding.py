"""Binding: what an Accelerator is in one process, where its settings have met a replica."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .accumulation import Accumulation
from .checkpoint.keepsakes import Keepsakes
from .collectives import Collectives
from .gradient_state import share_accumulation
from .joining import replica_here
from .precision import Precision, parse_precision
from .prepared import Prepared
from .states import share, stance_of
from .trackers import Tracking

if TYPE_CHECKING:
    import torch

    from nb_accelerate.replica import Replica

    from .engine import Engine
    from .plugins import GradientAccumulationPlugin
    from .settings import Settings
    from .states import Stance

__all__ = ["Binding", "bind", "replica_for"]


@dataclass(slots=True, eq=False, kw_only=True)
class Binding:
    """Everything that belongs to one process and cannot travel.

    Attributes:
        scaler: keeps fp16 gradients from vanishing; None in other precisions.
        home: what the Accelerator's `state` shows: its stance, and what the user has set there.
        triggered: whether this rank has pulled the trigger.
        said: what the user has been told, so that it is told once.
    """

    settings: Settings
    replica: Replica
    engine: Engine
    precision: Precision
    scaler: torch.amp.GradScaler | None
    prepared: Prepared
    accumulation: Accumulation
    collectives: Collectives
    stance: Stance
    home: dict[str, Any]
    tracking: Tracking
    keepsakes: Keepsakes = field(default_factory=Keepsakes)
    triggered: bool = False
    said: set[str] = field(default_factory=set)

    def warn_once(self, text: str, *, stacklevel: int) -> None:
        """Warn, unless it has been said."""
        if text not in self.said:
            self.said.add(text)
            warnings.warn(text, stacklevel=stacklevel + 1)

    def say_once(self, text: str) -> None:
        """Print on the main process, unless it has been said."""
        if text not in self.said and self.replica.rank == 0:
            print(text)  # noqa: T201  # for the cell
        self.said.add(text)


def replica_for(settings: Settings) -> Replica:
    """The current replica, joined to its group as the settings want it."""
    asked = settings.handlers.process_group
    group = asked.to_kwargs() if asked is not None else {}
    return replica_here(cpu=settings.cpu, group=group)


def bind(settings: Settings, replica: Replica) -> Binding:
    """Settings on a replica, whose states show it from now on.

    Raises:
        SpecError: the replica's device cannot do what was asked for, or its group is missing.
    """
    stance = stance_of(replica, cpu=settings.cpu)
    engine, handlers = stance.engine, settings.handlers
    name = settings.mixed_precision or parse_precision(replica.mixed_precision)
    if name == "fp16":  # the others are asked of the device later, not to initialise it here
        engine.require_precision(name)
    stance.mixed_precision, stance.settings = name, settings
    scaling = handlers.scaler.to_kwargs() if handlers.scaler is not None else {}
    prepared, collectives = Prepared(), Collectives(engine)
    bound = Binding(
        settings=settings,
        replica=replica,
        engine=engine,
        precision=Precision(name, engine.device.type, handlers.autocast),
        scaler=engine.grad_scaler(scaling) if name == "fp16" else None,
        prepared=prepared,
        accumulation=Accumulation(_rule(settings, replica), prepared, collectives.total),
        collectives=collectives,
        stance=stance,
        home={"_stance": stance},
        tracking=Tracking(settings.log_with, settings.project.logging_dir, replica.rank),
    )
    share(stance)
    share_accumulation(replica, bound.accumulation)
    return bound


def _rule(settings: Settings, replica: Replica) -> GradientAccumulationPlugin:
    asked = settings.accumulation
    return replace(asked, num_steps=asked.num_steps or replica.gradient_accumulation_steps)
