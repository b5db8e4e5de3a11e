"""What cannot be: each rule gives a sentence or None; the first sentence is the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nb_accelerate.plan.kinds import CPU, CUDA, TPU, torch_knows
from nb_accelerate.plan.phrases import ability, counted, gpu_names, hidden_count, tpu_chips

if TYPE_CHECKING:
    from nb_accelerate.machine import Machine
    from nb_accelerate.plan.draft import Draft, Rule
    from nb_accelerate.plan.kinds import Kind

__all__ = ["REFUSALS"]


def _node_out_of_range(draft: Draft) -> str | None:
    spec = draft.spec
    if spec.node_rank < spec.num_nodes:
        return None
    ranks = "only 0" if spec.num_nodes == 1 else f"0 to {spec.num_nodes - 1}"
    return (
        f"node_rank={spec.node_rank}, but with num_nodes={spec.num_nodes} there is {ranks}."
        f" Give each machine its own node_rank, counted from 0."
    )


def _several_nodes(draft: Draft) -> str | None:
    spec = draft.spec
    if spec.num_nodes == 1:
        return None
    return (
        f"num_nodes={spec.num_nodes} (node_rank={spec.node_rank},"
        f" master_addr={spec.master_addr!r}), but this version launches on one machine only:"
        " several machines come with an engine such as SLURM or Ray, which it does not have yet."
        " Use num_nodes=1."
    )


def _restarts(draft: Draft) -> str | None:
    if not draft.spec.max_restarts:
        return None
    return (
        f"max_restarts={draft.spec.max_restarts}, but this version starts a run once."
        " Leave it out, and launch again from the newest checkpoint after a failure."
    )


def _no_torch(draft: Draft) -> str | None:
    if draft.machine.has_torch:
        return None
    return (
        "torch is not installed in this kernel's Python, and every worker needs it."
        " Run `%pip install torch` and restart the kernel."
    )


def _no_such_device(draft: Draft) -> str | None:
    if draft.devices:
        return None
    return (
        f"hardware={draft.kind.name!r}, but this machine has no {draft.kind.noun}"
        f"{_hidden(draft.machine, draft.kind)}. Use hardware='auto' or 'cpu'."
    )


def _hidden(machine: Machine, kind: Kind) -> str:
    return f": {text}" if kind is CUDA and (text := hidden_count(machine)) else ""


def _no_torch_xla(draft: Draft) -> str | None:
    if draft.kind is not TPU or draft.machine.has_torch_xla:
        return None
    return (
        f"hardware='tpu', and this machine has {tpu_chips(draft.machine)}, but torch_xla is not"
        " installed. Install the torch_xla of your torch's version (`%pip install torch_xla`),"
        " or use hardware='cpu'."
    )


def _not_ready(draft: Draft) -> str | None:
    if draft.kind.ready:
        return None
    return (
        f"hardware={draft.kind.name!r}, and this machine has {tpu_chips(draft.machine)}, but this"
        " version cannot launch on TPUs yet. Use hardware='cpu'."
    )


def _torch_not_built(draft: Draft) -> str | None:
    if draft.machine.torch is None or torch_knows(draft.kind, draft.machine):
        return None
    return (
        f"hardware={draft.kind.name!r}, but the installed torch {draft.machine.torch.version} is"
        " not built for it. Install one that is (see pytorch.org), or use hardware='cpu'."
    )


def _too_many(draft: Draft) -> str | None:
    if draft.kind is CPU or draft.count <= draft.devices:
        return None
    names = "; ".join(filter(None, (gpu_names(draft.chosen), hidden_count(draft.machine))))
    range_ = "1" if draft.devices == 1 else f"1 to {draft.devices}"
    return (
        f"num_processes={draft.count}, but this machine has"
        f" {counted(draft.devices, draft.kind.noun)}{f' ({names})' if draft.chosen else ''}."
        f" Ask for {range_}, or use hardware='cpu'."
    )


def _no_workers_here(draft: Draft) -> str | None:
    if draft.machine.platform != "win32" or draft.method == "inline":
        return None
    return (
        f"This would start {counted(draft.count, 'worker process')}, which this version does on"
        " Linux and macOS only. On Windows, use num_processes=1, which runs in the kernel itself,"
        " or work in WSL."
    )


def _no_fork_here(draft: Draft) -> str | None:
    if draft.machine.platform != "darwin" or draft.method != "fork":
        return None
    return (
        "start_method='fork', but macOS's own libraries do not survive a fork of the kernel."
        " Use start_method='auto' or 'spawn'."
    )


def _crowd_inline(draft: Draft) -> str | None:
    if draft.method != "inline" or draft.count == 1:
        return None
    return (
        f"start_method='inline' runs in the kernel itself, as one process, but"
        f" num_processes={draft.count}. Leave num_processes out, or use start_method='auto'."
    )


def _precision_unknown_there(draft: Draft) -> str | None:
    asked, kind = draft.spec.mixed_precision, draft.kind
    if asked in kind.precisions:
        return None
    return (
        f"mixed_precision={asked!r}, but this would train on {counted(draft.count, kind.noun)},"
        f" which cannot compute in {asked}. Use mixed_precision='bf16' or 'no'."
    )


def _no_float8(draft: Draft) -> str | None:
    unable = [gpu for gpu in draft.chosen if gpu.float8 is False]
    if draft.spec.mixed_precision != "fp8" or not unable:
        return None
    return (
        f"mixed_precision='fp8' needs compute capability 8.9 or higher, but {ability(unable[0])}."
        " Use mixed_precision='bf16' or 'fp16'."
    )


REFUSALS: tuple[Rule, ...] = (
    _node_out_of_range,
    _several_nodes,
    _restarts,
    _no_torch,
    _no_workers_here,
    _no_fork_here,
    _crowd_inline,
    _no_such_device,
    _no_torch_xla,
    _not_ready,
    _torch_not_built,
    _too_many,
    _precision_unknown_there,
    _no_float8,
)
