"""Saving: how all ranks make one checkpoint together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nb_accelerate.errors import SpecError
from nb_accelerate.training.models import original_of, unwrap_model

from .agreement import by_all, by_main
from .draft import Draft, full_path
from .files import Contents, states_of, write_random_states, write_states
from .index import Index, write_index
from .names import stale_names
from .point import Point, point_of, write_gradients, write_positions
from .project import limit_number, next_number

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from torch import nn

    from nb_accelerate.training.binding import Binding

__all__ = ["contents_of", "models_of", "save_state"]


@dataclass(frozen=True, slots=True)
class _Order:
    """What rank 0 has decided.

    Attributes:
        number: of an automatically named checkpoint.
    """

    token: str
    number: int | None


def save_state(here: Binding, output_dir: str | os.PathLike[str] | None, *, safe: bool) -> Path:
    """Write all that training needs to go on from here. A collective.

    Returns:
        The folder as it was asked for, or the automatically named one.
    """
    project, collectives = here.settings.project, here.collectives
    order = by_main(collectives, "begin a checkpoint", partial(_ordered, here))
    folder = _chosen(here, order, output_dir)
    draft = Draft.of(full_path(folder), order.token)
    what = f"write the checkpoint {folder}"
    owns = False
    try:
        owns = _begun(here, draft, what)
        points = by_all(collectives, what, partial(_write, here, draft, owns=owns, safe=safe))
        publish = partial(_publish, here, draft, points, order)
        by_all(collectives, what, publish if owns else _nothing)
    except BaseException:
        if owns or here.replica.rank == 0:
            draft.discard()
        raise
    project.iteration = 1 + (project.iteration if order.number is None else order.number)
    return folder


def contents_of(here: Binding) -> Contents:
    """What this Accelerator saves and loads."""
    prepared = here.prepared
    return Contents(
        optimizers=prepared.optimizers, schedulers=prepared.schedulers, loaders=prepared.loaders,
        scaler=here.scaler, custom=here.keepsakes.objects,
    )  # fmt: skip


def models_of(here: Binding) -> list[nn.Module]:
    """The models as the user made them; what `prepare` has compiled is not."""
    ours = here.settings.compilation.backend_name != "no"
    return [unwrap_model(original_of(one) if ours else one) for one in here.prepared.models]


def _ordered(here: Binding) -> _Order:
    project = here.settings.project
    number = next_number(project) if project.automatic_checkpoint_naming else None
    return _Order(secrets.token_hex(8), number)


def _chosen(here: Binding, order: _Order, output_dir: str | os.PathLike[str] | None) -> Path:
    if order.number is not None:
        return here.settings.project.folder_of(order.number)
    if output_dir is None:
        raise SpecError(
            "save_state() needs a folder to write to. Pass output_dir, or let checkpoints be "
            "numbered: ProjectConfiguration(project_dir=..., automatic_checkpoint_naming=True)."
        )
    return Path(output_dir)


def _begun(here: Binding, draft: Draft, what: str) -> bool:
    """Make the draft's folder on each disk; whether this rank looks after it."""
    by_main(here.collectives, what, draft.begin)
    return by_all(here.collectives, what, partial(_owns, here, draft))[here.replica.rank]


def _owns(here: Binding, draft: Draft) -> bool:
    """Make one where rank 0's is not seen: on another host's disk, or in a folder of one's own."""
    if here.replica.rank == 0:
        return True
    if draft.folder.exists():
        return False
    try:
        draft.begin()
    except FileExistsError:  # another rank of the same disk was first
        return False
    return True


def _write(here: Binding, draft: Draft, *, owns: bool, safe: bool) -> Point:
    """Write this rank's part."""
    folder, token, rank = draft.folder, draft.token, here.replica.rank
    models = models_of(here)
    weights = [model.state_dict() for model in models]
    for hook in here.keepsakes.save_hooks.values():
        hook(models, weights, str(folder))
    states = states_of(weights, contents_of(here), safe=safe)
    if owns and (rank == 0 or here.settings.project.save_on_each_node):
        write_states(folder, states)
    write_gradients(folder, here.accumulation, here.prepared, rank)
    point = point_of(here.accumulation, here.prepared)
    step = here.accumulation.step
    write_random_states(folder, rank, step, here.engine.device, nb_accelerate=token)
    return point


def _publish(here: Binding, draft: Draft, points: Sequence[Point], order: _Order) -> None:
    """Write what is known of all ranks, and let the draft become the checkpoint."""
    write_positions(draft.folder, points)
    windows = [point.windows for point in points]
    write_index(draft.folder, Index(token=draft.token, world_size=len(points), windows=windows))
    old = [path.name for path in draft.target.iterdir()] if draft.is_within else []
    new = [path.name for path in draft.folder.iterdir()]
    draft.publish(stale=stale_names(old, new), must_be_new=order.number is not None)
    if order.number is not None:
        limit_number(here.settings.project)


def _nothing() -> None:
    """What the others do."""
