"""Binding: what an Accelerator is in one process, where its settings have met a replica."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .accumulation import Accumulation
from .collectives import Collectives
from .engine import engine_for
from .precision import Precision, parse_precision
from .prepared import Prepared

if TYPE_CHECKING:
    import torch

    from nb_accelerate.replica import Replica

    from .engine import Engine
    from .settings import Settings

__all__ = ["Binding", "bind"]


@dataclass(slots=True, eq=False, kw_only=True)
class Binding:
    """Everything that belongs to one process and cannot travel.

    Attributes:
        scaler: keeps fp16 gradients from vanishing; None in other precisions.
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
    pid: int = field(default_factory=os.getpid)
    said: set[str] = field(default_factory=set)

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked since."""
        return self.pid == os.getpid()

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


def bind(settings: Settings, replica: Replica) -> Binding:
    """Settings on a replica.

    Raises:
        SpecError: the replica's device cannot do what was asked for, or its group is missing.
    """
    engine = engine_for(replica, cpu=settings.cpu)
    name = settings.mixed_precision or parse_precision(replica.mixed_precision)
    if name == "fp16":  # the others are asked of the device later, not to initialise it here
        engine.require_precision(name)
    prepared = Prepared()
    steps = settings.gradient_accumulation_steps or replica.gradient_accumulation_steps
    return Binding(
        settings=settings,
        replica=replica,
        engine=engine,
        precision=Precision(name, engine.device.type),
        scaler=engine.grad_scaler() if name == "fp16" else None,
        prepared=prepared,
        accumulation=Accumulation(steps, prepared),
        collectives=Collectives(engine),
    )
