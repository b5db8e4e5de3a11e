"""The same training by hand, with nb_accelerate, Accelerate and Fabric: what ranks compare.

Each rival prepares and returns plain callables, so that one loop times them all in the same
processes, on the same group, in turns.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "MODELS",
    "RIVALS",
    "ROWS",
    "BatchedTable",
    "Reading",
    "Rival",
    "Stream",
    "Table",
    "as_it_is",
]


# ---------------------------------------------------------------- what is trained
class TinyGpt(nn.Module):
    """Two causal blocks over 32 tokens of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, 64), nn.Embedding(32, 64)
        block = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.blocks(h, mask=self.mask, is_causal=True)).flatten(0, 1)


def _mlp() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(32, 64), torch.randint(10, (32,))


def _cnn() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    layers = [
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3),
        nn.ReLU(), nn.Flatten(), nn.Linear(128, 10),
    ]  # fmt: skip
    return nn.Sequential(*layers), torch.randn(32, 1, 8, 8), torch.randint(10, (32,))


def _gpt() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    x = torch.randint(256, (8, 32))
    return TinyGpt(), x, x.roll(-1, 1).flatten()


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]]] = {
    "MLP": _mlp,
    "CNN": _cnn,
    "GPT": _gpt,
}


# ---------------------------------------------------------------- what is read
ROWS = 8192


class Table:
    """Rows of 64, one at a time."""

    def __init__(self) -> None:
        self.x, self.y = torch.randn(ROWS, 64), torch.randint(10, (ROWS,))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class BatchedTable(Table):
    """The same, a batch indexed at once."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.tensor(indices)
        return self.x[chosen], self.y[chosen]


def as_it_is(batch: Any) -> Any:
    """What a dataset has put together needs no collating."""
    return batch


class Stream(IterableDataset[Any]):
    """The same as a stream; of several ranks each has its batches in turn."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size, self.table = rank, world_size, Table()

    def __iter__(self) -> Iterator[Any]:
        for start in range(32 * self.rank, ROWS, 32 * self.world_size):
            for index in range(start, start + 32):
                yield self.table[index]


@dataclass(frozen=True, slots=True)
class Reading:
    """A dataset and how it is read; `plain` is what is read by hand instead."""

    dataset: Any
    workers: int = 0
    collate: Callable[[Any], Any] | None = None
    plain: Any = None

    def loader(self, dataset: Any, **settings: Any) -> DataLoader[Any]:
        """A DataLoader of `dataset`, in batches of 32."""
        return DataLoader(dataset, 32, num_workers=self.workers, **settings)


# ---------------------------------------------------------------- who trains
@dataclass(frozen=True, slots=True)
class Rival:
    """One way to do it.

    Attributes:
        step: (model kind) → one training step on a batch in memory.
        accumulating: (model kind) → four micro-batches and one update.
        epoch: (what is read) → one pass over this rank's share.
        gather: predictions and targets of all ranks; None where there is no such call.
        calls: small things that training code does at each step, by name.
    """

    step: Callable[[str], Callable[[], object]]
    accumulating: Callable[[str], Callable[[], object]] | None = None
    epoch: Callable[[Reading], Callable[[], object]] | None = None
    gather: Callable[[], Callable[[], object]] | None = None
    calls: Callable[[], dict[str, Callable[[], object]]] | None = None


def _step(
    model: nn.Module, optimizer: Any, data: tuple[Any, Any], backward: Callable[[Any], object]
) -> Callable[[], object]:
    x, y = data

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model, x, y = MODELS[kind]()
    return model, torch.optim.AdamW(model.parameters(), foreach=True), (x, y)


def _is_spread() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True) if _is_spread() else model


def _pass(loader: Any) -> Callable[[], object]:
    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


# ---------------------------------------------------------------- by hand
def _by_hand(kind: str) -> Callable[[], object]:
    model, optimizer, data = _made(kind)
    return _step(_ddp(model), optimizer, data, lambda loss: loss.backward())


def _accumulating_by_hand(kind: str) -> Callable[[], object]:
    model, optimizer, (x, y) = _made(kind)
    model = _ddp(model)

    def update() -> None:
        for micro in range(4):
            quiet = model.no_sync() if micro < 3 and _is_spread() else nullcontext()
            with quiet:
                (F.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _epoch_by_hand(reading: Reading) -> Callable[[], object]:
    rank, world_size = _place()
    if isinstance(reading.dataset, IterableDataset):
        return _pass(reading.loader(Stream(rank, world_size)))
    dataset = reading.plain or reading.dataset
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=True)
    return _pass(reading.loader(dataset, sampler=sampler))


def _place() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


# ---------------------------------------------------------------- with an Accelerator
def _accelerator_step(make: Callable[..., Any], kind: str) -> Callable[[], object]:
    accelerator = make()
    model, optimizer, data = _made(kind)
    model, optimizer = accelerator.prepare(model, optimizer)
    return _step(model, optimizer, data, accelerator.backward)


def _accelerator_accumulating(make: Callable[..., Any], kind: str) -> Callable[[], object]:
    accelerator = make(gradient_accumulation_steps=4)
    model, optimizer, (x, y) = _made(kind)
    model, optimizer = accelerator.prepare(model, optimizer)

    def update() -> None:
        for _ in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    return update


def _plain_loader(reading: Reading) -> DataLoader[Any]:
    shuffled = not isinstance(reading.dataset, IterableDataset)
    return reading.loader(reading.dataset, shuffle=shuffled, collate_fn=reading.collate)


def _accelerator_epoch(make: Callable[..., Any], reading: Reading) -> Callable[[], object]:
    return _pass(make().prepare(_plain_loader(reading)))


def _accelerator_gather(make: Callable[..., Any]) -> Callable[[], object]:
    accelerator, batch = make(), (torch.randn(32, 10), torch.randint(10, (32,)))
    return lambda: accelerator.gather_for_metrics(batch)


def _accelerator_calls(make: Callable[..., Any], package: str) -> dict[str, Callable[[], object]]:
    accelerator, model = make(), nn.Linear(2, 2)
    send = importlib.import_module(f"{package}.utils").send_to_device
    batch = {name: torch.randn(32, 4) for name in "abcd"}

    def accumulate() -> None:
        with accelerator.accumulate(model):
            pass

    def autocast() -> None:
        with accelerator.autocast():
            pass

    return {
        "is_main_process": lambda: accelerator.is_main_process,
        "accumulate()": accumulate,
        "autocast()": autocast,
        "a batch to the device it is on": lambda: send(batch, accelerator.device),
    }


def _ours(**settings: Any) -> Any:
    from nb_accelerate import Accelerator

    return Accelerator(**settings)


def _theirs(**settings: Any) -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True, **settings)


def _with(make: Callable[..., Any], package: str) -> Rival:
    return Rival(
        step=functools.partial(_accelerator_step, make),
        accumulating=functools.partial(_accelerator_accumulating, make),
        epoch=functools.partial(_accelerator_epoch, make),
        gather=functools.partial(_accelerator_gather, make),
        calls=functools.partial(_accelerator_calls, make, package),
    )


# ---------------------------------------------------------------- with Fabric
@functools.cache
def _fabric() -> Any:
    from lightning_fabric import Fabric

    world_size = _place()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strategy = "ddp" if world_size > 1 else "auto"
        fabric = Fabric(accelerator="cpu", devices=world_size, strategy=strategy)
        fabric.launch()
    return fabric


def _fabric_step(kind: str) -> Callable[[], object]:
    model, optimizer, data = _made(kind)
    model, optimizer = _fabric().setup(model, optimizer)
    return _step(model, optimizer, data, _fabric().backward)


def _fabric_epoch(reading: Reading) -> Callable[[], object]:
    return _pass(_fabric().setup_dataloaders(_plain_loader(reading)))


RIVALS: dict[str, Rival] = {
    "by hand": Rival(_by_hand, _accumulating_by_hand, _epoch_by_hand),
    "nb_accelerate": _with(_ours, "nb_accelerate"),
    "accelerate": _with(_theirs, "accelerate"),
    "Fabric": Rival(_fabric_step, epoch=_fabric_epoch),
}
