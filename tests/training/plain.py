"""Training written in plain PyTorch, in one process: what the ranks' results are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle, islice

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GLOBAL_BATCH = 12
NUM_CLASSES = 5
NUM_TOKENS, CONTEXT = 16, 12


@dataclass(frozen=True)
class Recipe:
    """One way to train."""

    model: str = "mlp"
    samples: int = 5 * GLOBAL_BATCH
    epochs: int = 2
    dtype: torch.dtype = torch.float64
    accumulation: int = 1
    clip: float | None = None
    steps_per_update: int | None = None
    """Steps of the schedule at each update; None: one for each rank."""
    optimizer: dict = field(default_factory=lambda: {"lr": 0.2, "momentum": 0.9})
    drop_last: bool = False


@dataclass
class Outcome:
    losses: list[float]
    rates: list[float]
    weights: list[torch.Tensor]


class TinyGpt(nn.Module):
    """Two causal blocks; the last token's place tells the class."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(NUM_TOKENS, 24), nn.Embedding(CONTEXT, 24)
        block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.places(torch.arange(CONTEXT))
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, dtype=hidden.dtype)
        return self.head(self.blocks(hidden, mask=mask, is_causal=True)[:, -1])


def build(recipe: Recipe) -> nn.Module:
    if recipe.model == "gpt":
        return TinyGpt().to(recipe.dtype)
    if recipe.model == "mlp":
        layers = [nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, NUM_CLASSES)]
    else:
        layers = [
            nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, NUM_CLASSES),
        ]  # fmt: skip
    return nn.Sequential(*layers).to(recipe.dtype)


def dataset(recipe: Recipe) -> TensorDataset:
    own = torch.Generator().manual_seed(11)
    if recipe.model == "gpt":
        x = torch.randint(NUM_TOKENS, (recipe.samples, CONTEXT), generator=own)
    else:
        x = torch.randn(recipe.samples, 1, 8, 8, generator=own, dtype=recipe.dtype)
    y = torch.randint(NUM_CLASSES, (recipe.samples,), generator=own)
    return TensorDataset(x, y)


def tools(model: nn.Module, recipe: Recipe):
    optimizer = torch.optim.SGD(model.parameters(), **recipe.optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    return optimizer, schedule


def reference(recipe: Recipe, world_size: int) -> Outcome:
    """Train in one process what `world_size` ranks train together."""
    torch.manual_seed(0)
    model = build(recipe)
    optimizer, schedule = tools(model, recipe)
    data = dataset(recipe)
    outcome = Outcome([], [], [])
    waiting = []
    for _ in range(recipe.epochs):
        batches = global_batches(recipe, world_size)
        for number, indices in enumerate(batches, 1):
            x, y = data[torch.tensor(indices)]
            waiting.append(F.cross_entropy(model(x), y))
            outcome.losses.append(waiting[-1].item())
            if len(waiting) == recipe.accumulation or number == len(batches):
                update(model, optimizer, waiting, recipe)
                for _ in range(recipe.steps_per_update or world_size):
                    schedule.step()
                waiting = []
            outcome.rates.append(schedule.get_last_lr()[0])
    outcome.weights = [parameter.detach() for parameter in model.parameters()]
    return outcome


def update(model, optimizer, losses, recipe: Recipe) -> None:
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    if recipe.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()


def global_batches(recipe: Recipe, world_size: int) -> list[list[int]]:
    """What all ranks together see at a time, in the order in which plain PyTorch shuffles."""
    plain = DataLoader(range(recipe.samples), batch_size=GLOBAL_BATCH, shuffle=True)
    batches = [batch.tolist() for batch in plain]
    if len(batches[-1]) < GLOBAL_BATCH and recipe.drop_last:
        batches.pop()
    if world_size > 1:  # the last batch is filled up from the first
        batches[-1] = list(islice(batches[-1] + list(islice(cycle(batches[0]), GLOBAL_BATCH)),
                                  GLOBAL_BATCH))  # fmt: skip
    return batches
