"""Windows weighed by tokens, on 1, 2 and 4 ranks, against the full batch in one process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from nb_accelerate.training import Accelerator
from nb_accelerate.training.plugins import GradientAccumulationPlugin

VOCABULARY, LENGTH, WINDOWS, STEPS = 11, 9, 3, 3
IGNORED = -100


def tiny_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Embedding(VOCABULARY, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, VOCABULARY)]
    return nn.Sequential(*layers).double()


def micro_batches(ranks: int, windows: list[int]) -> list[list[list[tuple]]]:
    """[window][step][rank]: texts of unequal lengths; one of a window has no token that counts."""
    own = torch.Generator().manual_seed(3)
    batches = [[[text(own) for _ in range(ranks)] for _ in range(steps)] for steps in windows]
    if ranks > 1:
        for window in batches:
            window[0][-1] = (window[0][-1][0], torch.full((2, LENGTH), IGNORED))
    return batches


def text(own: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(VOCABULARY, (2, LENGTH), generator=own)
    y = torch.randint(VOCABULARY, (2, LENGTH), generator=own)
    y[torch.rand(2, LENGTH, generator=own) < torch.rand((), generator=own)] = IGNORED
    return x, y


def summed_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")


def reference(batches) -> list[torch.Tensor]:
    """Each window as one batch: the sum of all losses over the number of all tokens."""
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for window in batches:
        texts = [one for step in window for one in step]
        optimizer.zero_grad()
        total = sum(summed_loss(model, *one) for one in texts)
        (total / sum((y != IGNORED).sum() for _, y in texts)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def trained(accelerator: Accelerator, batches) -> list[torch.Tensor]:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    for window in batches:
        for step in window:
            x, y = step[accelerator.process_index]
            with accelerator.accumulate(model, tokens=(y != IGNORED).sum()):
                accelerator.backward(summed_loss(model, x, y))
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    return [p.detach() for p in accelerator.unwrap_model(model).parameters()]


def expect_the_reference(accelerator: Accelerator, windows: list[int]) -> None:
    batches = micro_batches(accelerator.num_processes, windows)
    for one, other in zip(trained(accelerator, batches), reference(batches), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def check_unequal_micro_batches_add_up_to_the_full_batch() -> None:
    expect_the_reference(Accelerator(gradient_accumulation_steps=STEPS), [STEPS] * WINDOWS)


def check_without_accumulation_the_ranks_tokens_add_up() -> None:
    expect_the_reference(Accelerator(), [1] * WINDOWS)


def check_averaging_in_each_micro_batch_changes_nothing() -> None:
    plugin = GradientAccumulationPlugin(num_steps=STEPS, sync_each_batch=True)
    expect_the_reference(Accelerator(gradient_accumulation_plugin=plugin), [STEPS] * WINDOWS)


def check_a_short_window_at_a_loaders_end_is_exact_too() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    ranks = accelerator.num_processes
    counts = torch.arange(1, 5 * ranks + 1).double()  # five micro-batches for each rank
    model = nn.Linear(1, 1, bias=False).double()
    model, loader = accelerator.prepare(model, DataLoader(counts, batch_size=1))
    gradients = []
    for count in loader:
        tokens = int(count.item())
        with accelerator.accumulate(model, tokens=tokens):
            accelerator.backward(model(count.expand(tokens, 1)).sum())
        if accelerator.sync_gradients:
            gradients.append(next(model.parameters()).grad.item())
            model.zero_grad()
    everyone = counts.view(5, ranks)
    windows = [everyone[0:2], everyone[2:4], everyone[4:5]]
    wanted = [((w * w).sum() / w.sum()).item() for w in windows]
    assert len(gradients) == len(wanted)
    torch.testing.assert_close(gradients, wanted, rtol=1e-12, atol=0)
