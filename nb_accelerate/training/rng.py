"""Random generators that all ranks take from rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nb_accelerate.errors import SpecError

from .draws import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .collectives import Collectives
    from .draws import RandomStates

__all__ = ["asked_rng_types", "of_rank_0", "synchronize", "take_from_rank_0"]

_DEFAULT = ("generator",)
_OF_DEVICES = frozenset(
    {"cuda", "xpu", "mps", "xla", "npu", "mlu", "sdaa", "musa", "hpu", "neuron"}
)


def asked_rng_types(rng_types: Iterable[object] | None) -> tuple[str, ...]:
    """Their names: of strings, or of members of Accelerate's RNGType. None is the samplers' own.

    Raises:
        SpecError: there is no such generator.
    """
    if rng_types is None:
        return _DEFAULT
    names = tuple(str(getattr(one, "value", one)) for one in rng_types)
    unknown = [name for name in names if name not in {"generator", "torch", *_OF_DEVICES}]
    if unknown:
        known = ", ".join(["generator", "torch", *sorted(_OF_DEVICES)])
        raise SpecError(f"rng_types={list(names)} was given; known are {known}.")
    return names


def synchronize(
    names: Iterable[str], generators: Sequence[torch.Generator], collectives: Collectives
) -> None:
    """Let them go on as rank 0's do. A collective.

    The samplers' own are always among them: ranks that draw other orders would not share a dataset.
    """
    if collectives.world_size == 1:
        return
    for generator in generators:
        take_from_rank_0("generator", generator, collectives)
    for name in names:
        if name != "generator":
            take_from_rank_0(name, None, collectives)


def take_from_rank_0(
    name: str, generator: torch.Generator | None, collectives: Collectives
) -> None:
    """Let one random generator go on as rank 0's does. A collective.

    Raises:
        SpecError: there is no such generator, or it was not given.
    """
    if name == "generator":
        if generator is None:
            raise SpecError("The state of a 'generator' was to be made equal, but none was given.")
        generator.set_state(_of_rank_0(generator.get_state(), collectives))
    elif name == "torch":
        torch.set_rng_state(_of_rank_0(torch.get_rng_state(), collectives))
    else:
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None or found.type != name:
            raise SpecError(
                f"The random state of {name!r} was to be made equal over the ranks, but this "
                f"machine's accelerator is {found.type if found else 'none'}. Known are 'torch', "
                f"'generator' and that device."
            )
        device = torch.get_device_module(found)
        device.set_rng_state(_of_rank_0(device.get_rng_state(), collectives))


def of_rank_0(states: RandomStates, collectives: Collectives) -> RandomStates:
    """Rank 0's, on every rank. A collective, of one exchange."""
    page = packed(states).to(collectives.engine.header_device)
    collectives.engine.broadcast(page, 0)
    return unpacked(page.cpu())


def _of_rank_0(state: torch.Tensor, collectives: Collectives) -> torch.Tensor:
    received: torch.Tensor = collectives.broadcast(state.clone())
    return received
