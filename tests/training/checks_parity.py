"""One training function, unchanged on 1, 2 and 4 ranks, against plain PyTorch in one process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from plain import GLOBAL_BATCH, Outcome, Recipe, build, dataset, reference, tools
from torch.utils.data import DataLoader

from nb_accelerate.training import Accelerator, set_seed


def train(recipe: Recipe, **settings) -> Outcome:
    accelerator = Accelerator(
        gradient_accumulation_steps=recipe.accumulation,
        scheduler_steps_per_update=recipe.steps_per_update,
        **settings,
    )
    set_seed(0)
    model = build(recipe)
    optimizer, schedule = tools(model, recipe)
    share = 1 if accelerator.split_batches else accelerator.num_processes
    loader = DataLoader(
        dataset(recipe), GLOBAL_BATCH // share, shuffle=True, drop_last=recipe.drop_last
    )
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    outcome = Outcome([], [], [])
    for epoch in range(recipe.epochs):
        for x, y in accelerator.track(loader, f"epoch {epoch}"):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if recipe.clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            outcome.losses.append(accelerator.reduce(loss.detach(), "mean").item())
            outcome.rates.append(schedule.get_last_lr()[0])
    outcome.weights = [p.detach() for p in accelerator.unwrap_model(model).parameters()]
    return outcome


def expect_parity(recipe: Recipe, **settings) -> None:
    world_size = Accelerator().num_processes
    found, wanted = train(recipe, **settings), reference(recipe, world_size)
    rtol = 1e-6 if recipe.dtype is torch.float32 else 1e-10
    assert len(found.losses) == len(wanted.losses)
    torch.testing.assert_close(found.rates, wanted.rates, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.losses, wanted.losses, rtol=rtol, atol=0)
    for one, other in zip(found.weights, wanted.weights, strict=True):
        assert torch.linalg.norm(one - other) <= rtol * torch.linalg.norm(other)


def check_an_mlp_trains_as_in_one_process() -> None:
    expect_parity(Recipe())


def check_a_cnn_trains_as_in_one_process() -> None:
    expect_parity(Recipe(model="cnn"))


def check_a_tiny_gpt_trains_as_in_one_process() -> None:
    recipe = Recipe(model="gpt", samples=4 * GLOBAL_BATCH + 7, accumulation=2, clip=0.3)
    expect_parity(recipe)


def check_a_tiny_gpt_in_float32_agrees_to_a_millionth() -> None:
    expect_parity(Recipe(model="gpt", dtype=torch.float32, optimizer={"lr": 0.05}))


def check_an_mlp_in_float32_agrees_to_a_millionth() -> None:
    expect_parity(Recipe(dtype=torch.float32, optimizer={"lr": 0.05}))


def check_a_cnn_in_float32_agrees_to_a_millionth() -> None:
    expect_parity(Recipe(model="cnn", dtype=torch.float32, optimizer={"lr": 0.05}))


def check_accumulation_with_a_short_last_window() -> None:
    expect_parity(Recipe(accumulation=3))  # 5 batches: windows of 3 and 2


def check_accumulation_with_a_last_window_of_one() -> None:
    expect_parity(Recipe(model="cnn", accumulation=2))  # 5 batches: windows of 2, 2 and 1


def check_accumulation_longer_than_the_epoch() -> None:
    expect_parity(Recipe(accumulation=8))


def check_clipping_sees_whole_gradients() -> None:
    expect_parity(Recipe(clip=0.3))


def check_accumulation_clipping_a_schedule_and_a_ragged_tail_together() -> None:
    recipe = Recipe(samples=4 * GLOBAL_BATCH + 7, accumulation=3, clip=0.3)
    expect_parity(recipe)
    expect_parity(Recipe(**{**vars(recipe), "model": "cnn"}))


def check_a_dropped_tail_is_the_same_tail_on_any_number_of_ranks() -> None:
    expect_parity(Recipe(samples=4 * GLOBAL_BATCH + 7, accumulation=3, drop_last=True))


def check_the_schedule_moves_once_for_each_update_on_request() -> None:
    expect_parity(Recipe(accumulation=2, steps_per_update=1))


def check_split_batches_train_alike_and_the_schedule_moves_once() -> None:
    recipe = Recipe(accumulation=2, steps_per_update=1)
    world_size = Accelerator().num_processes
    settings = {"split_batches": True}
    found = train(Recipe(**{**vars(recipe), "steps_per_update": None}), **settings)
    wanted = reference(recipe, world_size)
    torch.testing.assert_close(found.losses, wanted.losses, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.rates, wanted.rates, rtol=1e-12, atol=0)


def check_bf16_trains_in_float32_weights_and_close_to_full_precision() -> None:
    recipe = Recipe(dtype=torch.float32, optimizer={"lr": 0.05})
    found, wanted = train(recipe, mixed_precision="bf16"), train(recipe)
    assert all(weights.dtype is torch.float32 for weights in found.weights)
    assert found.losses != wanted.losses
    torch.testing.assert_close(found.losses, wanted.losses, rtol=3e-2, atol=3e-2)
