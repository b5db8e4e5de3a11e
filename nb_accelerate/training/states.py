"""States: views on the current replica, for code that asks for Accelerate's state objects.

`PartialState()`, `AcceleratorState()` and `GradientState()` show what the replica they are used on
shares, wherever they were made. What an Accelerator shows as its `state` and `gradient_state` is
its own.
"""

from __future__ import annotations

import functools
import os
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from nb_accelerate.errors import SpecError
from nb_accelerate.replica import current_replica

from .collectives import Collectives
from .engine import engine_for
from .joining import asks_for_cpu, environment, is_yes, leave_group, replica_here
from .precision import parse_precision
from .roles import Roles

if TYPE_CHECKING:
    from nb_accelerate.replica import Replica

    from .engine import DistributedType, Engine
    from .settings import Settings

__all__ = [
    "AcceleratorState",
    "Follower",
    "PartialState",
    "SharedState",
    "Stance",
    "followers",
    "is_initialized",
    "share",
    "stance_of",
]


@dataclass(slots=True, kw_only=True)
class Stance:
    """Where a replica stands. Equal where the facts are, in whatever process.

    Attributes:
        cpu: whether the CPU was asked for, whatever the machine has.
        mixed_precision: what is really computed in.
    """

    replica: Replica
    engine: Engine = field(compare=False)
    distributed_type: DistributedType
    cpu: bool
    mixed_precision: str = "no"
    settings: Settings | None = None

    @property
    def collectives(self) -> Collectives:
        """What the ranks do together."""
        return Collectives(self.engine)


def stance_of(replica: Replica, *, cpu: bool) -> Stance:
    """Where `replica` stands before anything was asked of it but the CPU."""
    cpu = cpu or asks_for_cpu()
    engine = engine_for(replica, cpu=cpu)
    return Stance(replica=replica, engine=engine, distributed_type=engine.distributed_type, cpu=cpu)


class Follower(Protocol):
    """What must hear of events of its process: an Accelerator."""

    def _forked(self) -> None:
        """This is another process now."""

    def _reset(self) -> None:
        """The states of the current replica are to show nothing any more."""


@functools.cache
def followers() -> weakref.WeakSet[Follower]:
    """Those of this process. Told, not asked: the process id costs a system call at each look."""
    found: weakref.WeakSet[Follower] = weakref.WeakSet()

    def tell() -> None:
        for follower in list(found):
            follower._forked()  # noqa: SLF001  # private to its user, not to us

    os.register_at_fork(after_in_child=tell)
    return found


def is_initialized() -> bool:
    """Whether an Accelerator has been made on the current replica."""
    return "_stance" in _home_of(current_replica(), "AcceleratorState")


def share(stance: Stance) -> None:
    """Let the states show `stance`, on its replica."""
    _home_of(stance.replica, "AcceleratorState")["_stance"] = stance
    _home_of(stance.replica, "PartialState").setdefault("_stance", stance)


def _home_of(replica: Replica, name: str) -> dict[str, Any]:
    """What the views of that name show on a replica; empty until there is something to show."""
    home: dict[str, Any] = replica.shared.setdefault(name, {})
    return home


class SharedState:
    """What all views of a class show, as `cls._shared_state`: the current replica's."""

    def __get__(self, _instance: object, cls: type) -> dict[str, Any]:
        return _home_of(current_replica(), cls.__name__)


class _State(Roles):
    """A view. What is set on it by hand is kept where it looks, for all that look there."""

    _shared_state: ClassVar[SharedState] = SharedState()
    _own: dict[str, Any] | None = None

    @property
    def _home(self) -> dict[str, Any]:
        return self._shared_state if self._own is None else self._own

    @property
    def _stance(self) -> Stance:
        try:
            return self._home["_stance"]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError("_stance") from None

    @property
    def _replica(self) -> Replica:
        return self._stance.replica

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the user has set
        home, cls = self._home, type(self).__name__
        if name in home and name != "_stance":
            return home[name]
        if "_stance" not in home and (name == "_stance" or hasattr(type(self), name)):
            raise AttributeError(
                f"`{cls}` object has no attribute {name!r}: it has nothing to show. "
                f"This happens if `{cls}._reset_state()` was called. Make a new Accelerator or "
                f"PartialState first."
            )
        raise AttributeError(f"'{cls}' object has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_own" or getattr(getattr(type(self), name, None), "fset", None) is not None:
            object.__setattr__(self, name, value)
        else:
            self._home[name] = value

    def __repr__(self) -> str:
        if not self.initialized:
            return f"<{type(self).__name__}: not initialized>"
        where = f"rank {self.process_index} of {self.num_processes} on {str(self.device)!r}"
        return f"<{type(self).__name__}: {where}, {self.distributed_type.value}>"

    @property
    def initialized(self) -> bool:
        """Whether there is something to show."""
        return "_stance" in self._home

    @property
    def device(self) -> torch.device:
        """Where this replica computes."""
        return self._stance.engine.device

    @property
    def distributed_type(self) -> DistributedType:
        """Accelerate's name for how the processes compute together."""
        return self._stance.distributed_type

    @distributed_type.setter
    def distributed_type(self, kind: DistributedType) -> None:
        self._stance.distributed_type = kind

    @property
    def backend(self) -> str | None:
        """What the ranks talk through; None for one alone."""
        if self.num_processes == 1 or not torch.distributed.is_initialized():
            return None
        return torch.distributed.get_backend()

    @property
    def debug(self) -> bool:
        """Whether ACCELERATE_DEBUG_MODE is set. Shapes are compared in any case."""
        return is_yes(environment().get("ACCELERATE_DEBUG_MODE", ""))

    @property
    def fork_launched(self) -> bool:
        """Whether FORK_LAUNCHED is set; this package's launches do not fork the kernel."""
        return is_yes(environment().get("FORK_LAUNCHED", ""))

    @property
    def _cpu(self) -> bool:
        return self._stance.cpu

    def wait_for_everyone(self) -> None:
        """Return once every rank has come here."""
        self._stance.collectives.barrier()

    def destroy_process_group(self, group: object = None) -> None:
        """Leave the group, of all ranks or a given one."""
        if group is not None:
            torch.distributed.destroy_process_group(group)  # type: ignore[arg-type]  # torch's
        else:
            leave_group()


class PartialState(_State):
    """Who this replica is. The first one that a process makes joins its group, as torchrun says.

    Args:
        cpu: compute on the CPU, whatever the machine has.
        kwargs: what `init_process_group` is told: backend, timeout, init_method. A replica that
            has its group already, or its state, takes none of it.
    """

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:  # noqa: ANN401, FBT001, FBT002
        if self.initialized:
            return
        group = {name: value for name, value in kwargs.items() if not name.startswith("_")}
        stance = stance_of(replica_here(cpu=cpu, group=group), cpu=cpu)
        self._home["_stance"] = stance

    @staticmethod
    def _reset_state() -> None:
        PartialState._shared_state.clear()

    @property
    def default_device(self) -> torch.device:
        """The device that a process alone would take."""
        found = torch.accelerator.current_accelerator(check_available=True)
        return found or torch.device("cpu")

    def set_device(self) -> None:
        """Make the replica's device the one that torch takes where none is named."""
        if self.device.type != "cpu" and self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)


class AcceleratorState(_State):
    """What the newest Accelerator of this replica stands on.

    Args:
        mixed_precision: must be that Accelerator's, if given. Others may have another.
        cpu: likewise.
        others: accepted for Accelerate's sake; an Accelerator is told those.

    Raises:
        SpecError: there is no Accelerator yet, or it is another than asked for.
    """

    def __init__(  # upstream's order
        self,
        mixed_precision: object = None,
        cpu: bool = False,  # noqa: FBT001, FBT002
        *others: object,  # noqa: ARG002
        **named_others: object,  # noqa: ARG002
    ) -> None:
        if not self.initialized:
            raise SpecError("AcceleratorState() shows an Accelerator, but there is none. Make one.")
        if mixed_precision is not None and parse_precision(mixed_precision) != self.mixed_precision:
            raise SpecError(
                f"AcceleratorState(mixed_precision={mixed_precision!r}) was asked for, but the "
                f"newest Accelerator computes in {self.mixed_precision!r}. Make another."
            )
        if cpu and self.device.type != "cpu":
            raise SpecError(
                f"AcceleratorState(cpu=True) was asked for, but the newest Accelerator computes on "
                f"{str(self.device)!r}. Make another Accelerator."
            )

    @classmethod
    def _of(cls, home: dict[str, Any]) -> AcceleratorState:
        """The view on one Accelerator's own stance."""
        state = cls.__new__(cls)
        state._own = home  # noqa: SLF001  # this is its constructor
        return state

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:  # noqa: FBT001, FBT002
        AcceleratorState._shared_state.clear()
        for follower in list(followers()):
            follower._reset()  # noqa: SLF001  # private to its user, not to us
        if reset_partial_state:
            PartialState._reset_state()  # noqa: SLF001  # upstream's name

    @property
    def mixed_precision(self) -> str:
        """What is really computed in: "no", "fp16" or "bf16"."""
        return self._stance.mixed_precision

    @property
    def is_fsdp2(self) -> bool:
        """Whether parameters are sharded by `fully_shard`."""
        return False

    @property
    def dynamo_plugin(self) -> object:
        """How models are compiled."""
        return self._stance.settings.compilation if self._stance.settings else None

    @property
    def deepspeed_plugin(self) -> None:
        """None: there is no DeepSpeed here."""

    @property
    def deepspeed_plugins(self) -> None:
        """None: there is no DeepSpeed here."""

    @property
    def fsdp_plugin(self) -> None:
        """None: nothing is sharded."""

    @property
    def megatron_lm_plugin(self) -> None:
        """None: there is no Megatron-LM here."""

    @property
    def parallelism_config(self) -> None:
        """None: data parallelism alone."""

    @property
    def device_mesh(self) -> None:
        """None: the ranks form no mesh."""
