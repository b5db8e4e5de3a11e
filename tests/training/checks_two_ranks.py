"""What two ranks do together, apart from loaders: models, accumulation, collectives, roles."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from nb_accelerate.errors import SpecError
from nb_accelerate.replica import SOLO, Replica, acting_as, current_replica
from nb_accelerate.training import Accelerator, DistributedType, set_seed

BIG = 5000  # elements: more than travel on a page


def rank() -> int:
    return dist.get_rank()


# ---------------------------------------------------------------- construction
def check_the_replica_gives_place_device_and_defaults() -> None:
    accelerator = Accelerator()
    assert (accelerator.num_processes, accelerator.process_index) == (2, rank())
    assert accelerator.device == torch.device("cpu")
    assert accelerator.distributed_type is DistributedType.MULTI_CPU
    assert accelerator.is_main_process == accelerator.is_local_main_process == (rank() == 0)
    assert accelerator.is_last_process == (rank() == 1)
    asked = Replica(
        rank=rank(), world_size=2, mixed_precision="bf16", gradient_accumulation_steps=3
    )
    with acting_as(asked):
        assert Accelerator().mixed_precision == "bf16"
        assert Accelerator().gradient_accumulation_steps == 3
        told = Accelerator(mixed_precision="no", gradient_accumulation_steps=1)
        assert (told.mixed_precision, told.gradient_accumulation_steps) == ("no", 1)


def check_an_accelerator_made_in_the_kernel_is_the_workers_when_unpickled() -> None:
    settings = {"gradient_accumulation_steps": 5, "split_batches": True}
    with acting_as(Replica()):
        made_in_the_kernel = Accelerator(**settings)
        assert made_in_the_kernel.num_processes == 1

        def function():
            return made_in_the_kernel.reduce(torch.tensor(made_in_the_kernel.process_index))

        sent = cloudpickle.dumps((function, made_in_the_kernel))
        function, accelerator = pickle.loads(sent)  # it binds when it is used, below
    assert (accelerator.num_processes, accelerator.process_index) == (2, rank())
    assert accelerator.gradient_accumulation_steps == 5
    assert accelerator.split_batches
    assert function().item() == 1


def check_a_process_of_a_foreign_group_is_refused() -> None:
    with pytest.raises(SpecError, match="would train alone"):
        Accelerator(replica=SOLO)
    with pytest.raises(SpecError, match="world_size=3"):
        Accelerator(replica=Replica(rank=rank(), world_size=3))


def check_two_accelerators_of_one_process_keep_their_settings() -> None:
    first = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    second = Accelerator(gradient_accumulation_steps=7)
    assert (first.gradient_accumulation_steps, first.mixed_precision) == (2, "bf16")
    assert (second.gradient_accumulation_steps, second.mixed_precision) == (7, "no")


# ---------------------------------------------------------------- models
class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = {"hidden": 3}
        self.layer = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        return self.layer(x)

    def describe(self) -> str:
        return f"hidden={self.config['hidden']}"


def check_a_prepared_model_answers_for_the_one_within() -> None:
    accelerator = Accelerator()
    raw = Configured()
    model = accelerator.prepare(raw)
    assert isinstance(model, DistributedDataParallel)
    assert model.config is raw.config
    assert model.describe() == "hidden=3"
    assert accelerator.unwrap_model(model) is raw
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = model.nothing_of_this_name


def check_ranks_start_from_the_weights_of_rank_0() -> None:
    accelerator = Accelerator()
    torch.manual_seed(rank())
    model = accelerator.prepare(Configured())
    gathered = accelerator.gather(model.layer.weight.detach()[None])
    assert torch.equal(gathered[0], gathered[1])


def check_a_frozen_model_is_not_wrapped_and_takes_rank_0s_weights() -> None:
    accelerator = Accelerator()
    torch.manual_seed(rank())
    raw = Configured().requires_grad_(False)
    raw.count += rank()
    model = accelerator.prepare(raw)
    assert model is raw
    for tensor in (raw.layer.weight, raw.layer.bias, raw.count):
        both = accelerator.gather(tensor[None])
        assert torch.equal(both[0], both[1])


def check_prepare_is_idempotent_and_keeps_the_order() -> None:
    accelerator = Accelerator()
    raw = Configured()
    optimizer = torch.optim.SGD(raw.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = DataLoader(TensorDataset(torch.zeros(8, 4)), 2)
    with contextlib.redirect_stdout(io.StringIO()):
        once = accelerator.prepare(schedule, loader, "other", optimizer, raw)
    assert [type(one).__name__ for one in once] == [
        "AcceleratedScheduler", "DataLoaderShard", "str", "AcceleratedOptimizer", "PreparedModel",
    ]  # fmt: skip
    twice = accelerator.prepare(*once)
    again = accelerator.prepare(schedule, loader, "other", optimizer, raw)
    assert all(a is b is c for a, b, c in zip(once, twice, again, strict=True))
    assert accelerator.prepare(raw) is once[-1]


def check_what_travels_of_a_prepared_model_is_the_model() -> None:
    accelerator = Accelerator(mixed_precision="bf16")
    model = accelerator.prepare(Configured())
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(copied) is Configured
        assert torch.equal(copied.layer.weight, model.layer.weight)
    x = torch.randn(2, 4)
    sent = pickle.loads(pickle.dumps(accelerator.unwrap_model(model)))
    assert torch.equal(sent(x), sent.layer(x))  # in full precision


def check_models_of_both_ranks_train_on_the_mean_gradient() -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    accelerator.backward(model(torch.tensor([[1.0 + 2 * rank()]])).sum())
    assert model.weight.grad.item() == 2.0  # the mean of 1 and 3


def check_backward_without_a_prepared_model_warns_once() -> None:
    accelerator = Accelerator()
    weight = torch.ones(1, requires_grad=True)
    with pytest.warns(UserWarning, match="trains alone"):
        accelerator.backward((weight * 2).sum())
    accelerator.backward((weight * 2).sum())  # warnings are errors here: it is not said again


def check_bf16_computes_in_bf16_and_gives_float32() -> None:
    accelerator = Accelerator(mixed_precision="bf16")
    seen = []
    raw = nn.Linear(4, 3)
    raw.register_forward_hook(lambda *_: None)
    inner = nn.Sequential(raw)
    raw.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    model = accelerator.prepare(inner)
    output = model(torch.randn(2, 4))
    accelerator.backward(output.sum())
    assert (seen, output.dtype, raw.weight.grad.dtype) == (
        [torch.bfloat16], torch.float32, torch.float32,
    )  # fmt: skip
    with accelerator.autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16


# ---------------------------------------------------------------- accumulation
def check_gradients_stay_local_within_a_window_and_meet_at_its_end() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    x = torch.tensor([[1.0 + 2 * rank()]])
    with accelerator.accumulate(model):
        accelerator.backward(model(x).sum())
    assert not accelerator.sync_gradients
    assert model.weight.grad.item() == x.item() / 2
    with accelerator.accumulate(model):
        accelerator.backward(model(x).sum())
    assert accelerator.sync_gradients
    assert model.weight.grad.item() == 2.0


def check_no_sync_keeps_gradients_local() -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    with accelerator.no_sync(model):
        accelerator.backward(model(torch.tensor([[1.0 + rank()]])).sum())
    assert model.weight.grad.item() == 1.0 + rank()


def check_two_blocks_in_one_iteration_count_for_their_own_models() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    models = [accelerator.prepare(nn.Linear(1, 1, bias=False)) for _ in range(2)]
    synced = []
    for _ in range(4):
        for model in models:
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                synced.append(accelerator.sync_gradients)
                if accelerator.sync_gradients:
                    assert model.weight.grad.item() == 1.0
                    model.zero_grad()
    assert synced == [False, False, True, True] * 2


def check_clipping_outside_of_an_update_leaves_gradients_alone() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.tensor([[8.0]])).sum())
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
        accelerator.clip_grad_value_(model.parameters(), 0.5)
        assert (norm.item(), model.weight.grad.item()) == (4.0, 4.0)
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.tensor([[8.0]])).sum())
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
        assert norm.item() == 8.0
        assert abs(model.weight.grad.item() - 0.5) < 1e-5
        accelerator.clip_grad_value_(model.parameters(), 0.25)
        assert model.weight.grad.item() == 0.25


def check_prepare_says_once_which_rule_the_schedule_follows() -> None:
    def said(**settings) -> str:
        accelerator = Accelerator(**settings)
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
        schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 2) for _ in range(2)]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            accelerator.prepare(optimizer, *schedules)
        return output.getvalue()

    text = said()
    assert text.count("moves 2 steps at each update") == (rank() == 0)
    assert said(scheduler_steps_per_update=1) == said(split_batches=True) == ""


# ---------------------------------------------------------------- collectives
def check_gather_concatenates_in_the_order_of_the_ranks() -> None:
    accelerator = Accelerator()
    gathered = accelerator.gather(torch.arange(3) + 10 * rank())
    assert gathered.tolist() == [0, 1, 2, 10, 11, 12]
    assert accelerator.gather(torch.tensor(float(rank()))).tolist() == [0.0, 1.0]
    assert accelerator.gather(torch.zeros(0, 3)).shape == (0, 3)


def check_gather_takes_every_dtype_and_layout() -> None:
    accelerator = Accelerator()
    dtypes = (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
        torch.float8_e4m3fn,
    )  # fmt: skip
    for size in (3, BIG):
        for dtype in dtypes:
            own = torch.full((size,), rank()).to(dtype)
            both = accelerator.gather(own)
            assert both.dtype is dtype
            wanted = torch.tensor([0] * size + [1] * size).to(dtype)
            assert torch.equal(both.view(torch.uint8), wanted.view(torch.uint8))
    turned = torch.arange(6).reshape(2, 3).t() + rank()
    assert torch.equal(accelerator.gather(turned)[3 * rank() : 3 * rank() + 3], turned)
    trained = torch.ones(2, requires_grad=True) * 3
    assert not accelerator.gather(trained).requires_grad


def check_gather_keeps_containers() -> None:
    accelerator = Accelerator()
    own = {"a": torch.tensor([rank()]), "b": (torch.tensor([1.0]), [torch.full((BIG,), rank())])}
    both = accelerator.gather(own)
    assert list(both) == ["a", "b"]
    assert type(both["b"]) is tuple
    assert type(both["b"][1]) is list
    assert both["a"].tolist() == [0, 1]
    assert both["b"][1][0].sum().item() == BIG
    many = accelerator.gather([torch.tensor([rank() + n]) for n in range(60)])  # a long header
    assert [one.tolist() for one in many] == [[n, n + 1] for n in range(60)]


def check_unequal_shapes_are_an_error_on_every_rank_and_harm_nothing() -> None:
    accelerator = Accelerator()
    for size in (3, BIG):
        with pytest.raises(SpecError) as caught:
            accelerator.gather(torch.zeros(size + rank(), 2))
        wanted = f"rank 0 brings float32 [{size}, 2]; rank 1 brings float32 [{size + 1}, 2]"
        assert wanted in str(caught.value)
        with pytest.raises(SpecError, match="reduce needs the same shapes"):
            accelerator.reduce(torch.zeros(size + rank()))
    with pytest.raises(
        SpecError, match=r"rank 0 brings int64 \[1\]; rank 1 brings int64 \[1\], int"
    ):
        accelerator.gather([torch.zeros(1, dtype=torch.int64)] * (1 + rank()))
    with pytest.raises(SpecError, match=r"float32.*float64"):
        accelerator.gather(torch.zeros(2, dtype=(torch.float32, torch.float64)[rank()]))
    assert accelerator.gather(torch.tensor([rank()])).tolist() == [0, 1]


def check_ranks_that_meet_in_different_calls_are_told_so() -> None:
    accelerator = Accelerator()
    call = (accelerator.gather, accelerator.reduce)[rank()]
    with pytest.raises(SpecError, match="rank 0 is in gather, rank 1 is in reduce"):
        call(torch.zeros(3))
    with pytest.raises(TypeError, match="found a str"):
        accelerator.gather(["text"])


def check_reduce_makes_sums_means_and_maxima() -> None:
    accelerator = Accelerator()
    for size in (2, BIG):
        own = torch.full((size,), 1.0 + 2 * rank())
        assert accelerator.reduce(own).unique().tolist() == [4.0]
        assert accelerator.reduce(own, "mean").unique().tolist() == [2.0]
        assert accelerator.reduce(own, "max").unique().tolist() == [3.0]
        assert accelerator.reduce(own, "none").unique().tolist() == [1.0 + 2 * rank()]
        assert accelerator.reduce(own, "mean", scale=0.5).unique().tolist() == [1.0]
        assert own.unique().tolist() == [1.0 + 2 * rank()]
        mean = accelerator.reduce(torch.full((size,), rank()), "mean")
        assert (mean.dtype, mean.unique().tolist()) == (torch.float32, [0.5])
        assert accelerator.reduce(torch.ones(size, dtype=torch.bool)).unique().tolist() == [2]
        small = accelerator.reduce(torch.full((size,), rank(), dtype=torch.int16))
        assert (small.dtype, small.unique().tolist()) == (torch.int16, [1])
    assert accelerator.reduce(torch.tensor(2.0)).shape == ()
    assert accelerator.reduce({"loss": [torch.tensor(1.0)]})["loss"][0].item() == 2.0
    with pytest.raises(SpecError, match="'median'"):
        accelerator.reduce(own, "median")


def check_broadcast_fills_in_place() -> None:
    accelerator = Accelerator()
    for size in (2, BIG):
        for source in (0, 1):
            own = torch.full((size,), rank(), dtype=torch.int16)
            assert accelerator.broadcast(own, source) is own
            assert own.unique().tolist() == [source]
    column = torch.full((4, 3), rank()).t()[1:]  # not contiguous
    accelerator.broadcast(column, 1)
    assert column.unique().tolist() == [1]


def check_pad_brings_all_ranks_to_the_largest_size() -> None:
    accelerator = Accelerator()
    own = torch.ones(2 + rank(), 3)
    padded = accelerator.pad_across_processes(own, pad_index=-1)
    assert padded.shape == (3, 3)
    assert padded[:, 0].tolist() == ([1, 1, -1], [1, 1, 1])[rank()]
    first = accelerator.pad_across_processes(own, pad_index=-1, pad_first=True)
    assert first[:, 0].tolist() == ([-1, 1, 1], [1, 1, 1])[rank()]
    assert accelerator.pad_across_processes(own.t(), dim=-1).shape == (3, 3)
    assert accelerator.pad_across_processes(own, dim=2).shape == own.shape
    assert accelerator.gather(padded).shape == (6, 3)


def check_gather_object_joins_lists_and_collects_the_rest() -> None:
    accelerator = Accelerator()
    assert accelerator.gather_object([rank(), "x"]) == [0, "x", 1, "x"]
    assert accelerator.gather_object({"rank": rank()}) == [{"rank": 0}, {"rank": 1}]
    assert accelerator.gather_object("text") == ["text", "text"]


# ---------------------------------------------------------------- roles
def check_the_main_process_goes_first() -> None:
    accelerator = Accelerator()
    with accelerator.main_process_first():
        begun = time.monotonic()
        if rank() == 0:
            sum(range(1_000_000))
        ended = time.monotonic()
    times = accelerator.gather_object([(begun, ended)])
    assert times[0][1] <= times[1][0]


def check_others_are_released_when_the_main_process_raises() -> None:
    accelerator = Accelerator()
    reached = []
    with contextlib.suppress(ZeroDivisionError), accelerator.local_main_process_first():
        if rank() == 0:
            _ = 1 / 0
        reached.append(True)
    assert accelerator.gather_object([len(reached)]) == [0, 1]


def check_decorated_functions_run_on_their_ranks_alone() -> None:
    accelerator = Accelerator()

    def run_with(decorate) -> list:
        return accelerator.gather_object([decorate(lambda value: value + rank())(10)])

    assert run_with(accelerator.on_main_process) == [10, None]
    assert run_with(accelerator.on_local_main_process) == [10, None]
    assert run_with(accelerator.on_last_process) == [None, 11]
    assert run_with(accelerator.on_process(process_index=1)) == [None, 11]
    assert run_with(accelerator.on_local_process(local_process_index=0)) == [10, None]


def check_print_is_for_the_main_process() -> None:
    accelerator = Accelerator()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        accelerator.print("loss", 0.5, sep="=")
    assert output.getvalue() == ("loss=0.5\n", "")[rank()]


def check_inputs_are_split_between_the_ranks() -> None:
    accelerator = Accelerator()
    with accelerator.split_between_processes(["a", "b", "c"]) as part:
        assert part == (["a", "b"], ["c"])[rank()]
    with accelerator.split_between_processes(["a", "b", "c"], apply_padding=True) as part:
        assert part == (["a", "b"], ["c", "c"])[rank()]
    given = {"x": torch.arange(3), "y": [1, 2, 3]}
    with accelerator.split_between_processes(given) as part:
        assert part["x"].tolist() == ([0, 1], [2])[rank()]
    assert len(given["y"]) == 3  # it is not changed
    with accelerator.split_between_processes(["a"]) as part:
        assert part == (["a"], [])[rank()]


# ---------------------------------------------------------------- telling, seeds
def check_every_rank_reports_metrics_and_progress() -> None:
    accelerator = Accelerator()
    reporter = current_replica().reporter
    reporter.records.clear()
    reporter.steps.clear()
    accelerator.log({"loss": torch.tensor(0.5)}, step=3)
    assert reporter.records == [({"loss": torch.tensor(0.5)}, 3)]
    assert list(accelerator.track(range(3), "epoch 0")) == [0, 1, 2]
    assert reporter.steps[0] == ("epoch 0", 0, 3, False)
    assert reporter.steps[-1] == ("epoch 0", 3, 3, True)
    assert not accelerator.should_stop
    reporter.stop = True
    assert accelerator.should_stop
    reporter.stop = False


def check_seeds_are_equal_or_each_ranks_own() -> None:
    accelerator = Accelerator()
    set_seed(5)
    assert accelerator.gather(torch.rand(1)).unique().numel() == 1
    set_seed(5, device_specific=True)
    assert accelerator.gather(torch.rand(1)).unique().numel() == 2
