from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys
import traceback
from contextlib import contextmanager
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from nb_accelerate import payload
from nb_accelerate.payload import storages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nb_accelerate.messages import Parcel

# The first step of any optimizer sets TORCHINDUCTOR_CACHE_DIR.
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()

CELL = "/nowhere/cell_7.py"

# A fresh interpreter that answers one call, as a worker does.
WORKER = """
import pickle, socket, sys
from nb_accelerate import payload

def main():
    link = socket.socket(fileno=int(sys.argv[1]))
    _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
    call, sources = pickle.load(link.makefile("rb"))
    payload.restore_sources(sources)
    payload.install_by_value_pickling()
    try:
        function, args, kwargs, _ = payload.unpack(call, descriptors[0] if descriptors else None)
        packed = payload.pack_value(("value", function(*args, **kwargs)))
    except Exception as error:
        packed = payload.pack_error(error)
    socket.send_fds(link, [b"x"], [] if packed.fd is None else [packed.fd])
    with link.makefile("wb") as file:
        pickle.dump(packed.parcel, file)

if __name__ == "__main__":
    main()
"""


def run_cell(source: str) -> dict[str, Any]:
    text = dedent(source)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    payload.restore_sources({CELL: text})
    exec(compile(text, CELL, "exec"), namespace)
    return namespace


@contextmanager
def worker(folder: Any) -> Iterator[socket.socket]:
    """The kernel's end of a link to a fresh process that is gone when the block ends."""
    script = folder / "worker.py"
    script.write_text(WORKER)
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(theirs.fileno())]
    with (
        ours,
        subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment) as process,
    ):
        theirs.close()
        try:
            yield ours
            process.wait(timeout=60)
        finally:
            process.kill()


def in_a_worker(folder: Any, function: Any, *args: object) -> tuple[Parcel, int | None]:
    with payload.pack_call(function, args, {}) as packed, worker(folder) as link:
        socket.send_fds(link, [b"x"], [] if packed.fd is None else [packed.fd])
        with link.makefile("wb") as file:
            pickle.dump((packed.parcel, payload.cell_sources(packed.filenames)[0]), file)
        _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
        with link.makefile("rb") as file:
            return pickle.load(file), descriptors[0] if descriptors else None


def value_of(folder: Any, function: Any, *args: object) -> Any:
    kind, value = payload.unpack(*in_a_worker(folder, function, *args))
    assert kind == "value"
    return value


def there_and_back(obj: object, **options: Any) -> Any:
    with payload.pack(obj) as packed:
        descriptor = None if packed.fd is None else os.dup(packed.fd)
        return payload.unpack(packed.parcel, descriptor, **options)


# ---------------------------------------------------------------- tensors
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(40_000.0),
        torch.arange(40_000.0).reshape(200, 200).t(),
        torch.arange(40_000.0)[::3],
        torch.arange(10),
        torch.ones(40_000, dtype=torch.bfloat16),
        torch.ones(70_000, dtype=torch.bool),
        torch.ones(10_000, dtype=torch.complex64),
        torch.ones(80_000, dtype=torch.float8_e4m3fn).view(torch.uint8),
        torch.tensor(3.0),
        torch.empty(0),
        torch.empty(0, 5, dtype=torch.int8),
        torch.ones(3).expand(4, 3),
        torch.eye(3).to_sparse(),
        torch.ones(20_000, requires_grad=True),
        torch.nn.Parameter(torch.ones(3), requires_grad=False),
        torch.ones(3, 3, device="meta"),
        torch.ones(3, dtype=torch.complex64).conj(),
    ],
    ids=lambda t: f"{t.layout}-{t.dtype}-{tuple(t.shape)}".replace("torch.", ""),
)
def test_tensors_of_every_kind_come_back_as_they_were(tensor: torch.Tensor) -> None:
    came = there_and_back(tensor)
    assert type(came) is type(tensor)
    assert (came.dtype, came.shape, came.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert came.requires_grad == tensor.requires_grad
    if tensor.layout is torch.strided:
        assert came.stride() == tensor.stride()
    if tensor.device.type != "meta":
        assert torch.equal(came.to_dense(), tensor.to_dense())


def test_tensors_that_share_a_storage_share_it_where_they_arrive() -> None:
    whole = torch.zeros(40_000)
    with payload.pack([whole[10:], whole.view(200, 200), whole]) as packed:
        assert [size for _, size in packed.parcel.spans] == [160_000]
        tail, square, again = payload.unpack(packed.parcel, os.dup(packed.fd))
    again[:] = 5
    assert tail.sum() == 5 * 39_990
    assert square.sum() == 5 * 40_000
    assert whole.sum() == 0


def test_a_rank_may_write_to_its_tensors_and_nobody_else_sees_it() -> None:
    with payload.pack(torch.zeros(40_000)) as packed:
        first, second = (payload.unpack(packed.parcel, os.dup(packed.fd)) for _ in range(2))
    first += 1
    assert (first.sum(), second.sum()) == (40_000, 0)


def test_small_tensors_have_memory_of_their_own() -> None:
    came = there_and_back(torch.ones(3))
    came.resize_(1000)
    assert came.data_ptr() % 64 == 0


def test_a_tensor_keeps_its_memory_while_it_is_used() -> None:
    came = there_and_back([torch.arange(40_000), torch.ones(40_000)])[0][39_000:]
    assert came[0] == 39_000


def make_training() -> tuple[Any, ...]:
    tied = torch.nn.Linear(300, 300)
    head = torch.nn.Linear(300, 300)
    head.weight = tied.weight
    model = torch.nn.Sequential(tied, torch.nn.BatchNorm1d(300), head)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 300)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    data = TensorDataset(torch.arange(1000))
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(data, 7, shuffle=True, generator=generator, collate_fn=lambda b: b)
    return model, optimizer, scheduler, loader


def test_a_training_keeps_its_identities() -> None:
    training = make_training()
    model, optimizer, scheduler, loader = there_and_back(training)
    parameters = list(model.parameters())
    assert parameters[0] is model[2].weight
    assert all(
        ours is theirs
        for ours, theirs in zip(parameters, optimizer.param_groups[0]["params"], strict=True)
    )
    assert scheduler.optimizer is optimizer
    assert set(map(id, optimizer.state)) == set(map(id, parameters))
    assert [b[0] for b in loader] == [b[0] for b in training[3]]


def test_a_scheduler_goes_on_counting_its_optimizers_steps() -> None:
    _, optimizer, scheduler, _ = there_and_back(make_training())
    optimizer.step()
    scheduler.step()  # warnings are errors here
    assert scheduler.last_epoch == 1
    twice = there_and_back((optimizer, scheduler))
    twice[0].step()
    twice[1].step()
    assert twice[1].last_epoch == 2


def test_weights_travel_beside_the_pickle_once() -> None:
    model = make_training()[0]
    with payload.pack((model, dict(model.named_parameters()), list(model.parameters()))) as packed:
        assert len(packed.parcel.spans) == 1
        assert len(packed.parcel.body) < 20_000


def test_nothing_of_torch_is_known_where_torch_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.UntypedStorage in storages.storage_reducers()
    monkeypatch.delitem(sys.modules, "torch")
    assert storages.storage_reducers() == {}


def test_what_was_on_an_accelerator_goes_to_the_device_that_loads_it() -> None:
    raw = bytearray(b"12345678")
    with storages.loading_onto("meta"):
        assert storages._rebuild_storage(raw, True).device.type == "meta"
        assert storages._rebuild_storage(raw, False).device.type == "cpu"
        assert storages._rebuild_from_cpu(torch.ones(2), True).device.type == "meta"
    assert bytes(storages._rebuild_storage(raw, True)) == b"12345678"
    assert storages._rebuild_from_cpu(torch.ones(2), True).requires_grad


@pytest.mark.gpu
def test_tensors_of_a_device_arrive_where_they_are_wanted() -> None:
    weights = torch.arange(40_000.0, device="cuda")
    sent = [weights, weights[10:], torch.ones(3), torch.nn.Parameter(weights)]
    came = there_and_back(sent, device="cuda:0")
    assert [t.device.type for t in came] == ["cuda", "cuda", "cpu", "cuda"]
    came[0].zero_()
    assert came[1].sum() == came[3].sum() == 0
    home = there_and_back(sent)
    assert {t.device.type for t in home} == {"cpu"}
    assert torch.equal(home[1], weights[10:].cpu())
    assert isinstance(home[3], torch.nn.Parameter)


# ---------------------------------------------------------------- a second process
CLASSES = """
    import dataclasses, enum, functools, torch

    SCALE = 3
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(200, 200)
        def forward(self, x): return self.layer(x) * SCALE
    @dataclasses.dataclass
    class Point:
        x: int
    @dataclasses.dataclass(frozen=True, slots=True)
    class Slotted:
        x: int
    class Color(enum.Enum):
        RED = 1
    class Odd(Exception):
        def __init__(self, *, code): self.code = code
    def train(net, point):
        assert isinstance(net, Net) and isinstance(point, Point)
        class Local:
            y = SCALE
        with torch.no_grad():
            net.layer.weight.fill_(SCALE)
        return {
            "net": net, "point": Point(point.x + 1), "slotted": Slotted(5), "color": Color.RED,
            "class": Net, "local": Local(), "partial": functools.partial(Point, 3),
            "add": lambda x: x + SCALE,
        }
    def fail():
        raise Odd(code=4)  # the line
"""


def test_values_of_cell_classes_come_back_as_the_kernels_own(tmp_path: Any) -> None:
    cell = run_cell(CLASSES)
    forward = cell["Net"].forward
    net = cell["Net"]()
    value = value_of(tmp_path, cell["train"], net, cell["Point"](1))
    assert value["class"] is type(value["net"]) is cell["Net"]
    assert value["point"] == cell["Point"](2)
    assert value["slotted"] == cell["Slotted"](5)
    assert value["color"] is cell["Color"].RED
    assert value["partial"]() == cell["Point"](3)
    assert value["add"](1) == 4
    assert value["local"].y == 3
    assert cell["Net"].forward is forward
    assert value["net"].layer.weight.min() == 3
    assert net.layer.weight.max() < 1


def test_a_workers_exception_is_of_the_cells_class_with_the_cells_line(tmp_path: Any) -> None:
    cell = run_cell(CLASSES)
    error, trace = payload.unpack_error(*in_a_worker(tmp_path, cell["fail"]))
    assert type(error) is cell["Odd"]
    assert error.code == 4
    assert "raise Odd(code=4)  # the line" in "".join(traceback.format_tb(trace))


def test_ipython_shows_the_cells_line_of_a_workers_exception(tmp_path: Any) -> None:
    from IPython.core.ultratb import AutoFormattedTB

    error, trace = payload.unpack_error(*in_a_worker(tmp_path, run_cell(CLASSES)["fail"]))
    text = AutoFormattedTB(mode="Context").text(type(error), error, trace)
    assert "raise Odd(code=4)  # the line" in re.sub(r"\x1b\[[\d;]*m", "", text)


def test_data_of_the_kernel_can_be_computed_on(tmp_path: Any) -> None:
    array, tensor = np.arange(50_000.0), torch.arange(50_000.0)
    cell = run_cell("def total(a, t):\n    a += 1\n    t += 1\n    return a.sum() + t.sum(), a")
    total, back = value_of(tmp_path, cell["total"], array, tensor)
    assert total == 2 * (array.sum() + 50_000)
    assert back[0] == 1
    assert array[0] == tensor[0] == 0


LOADERS = """
    import dataclasses, functools, torch
    from torch.utils.data import DataLoader

    @functools.cache
    def text(i): return str(i)
    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor
        names: list
    class Squares:
        def __len__(self): return 8
        def __getitem__(self, i): return i ** 2
    collate = lambda items: Batch(torch.tensor(items), [text(i) for i in items])
    def read(method):
        loader = DataLoader(
            Squares(), 4, num_workers=1, collate_fn=collate, multiprocessing_context=method
        )
        methods = vars(Batch)["__init__"], vars(Batch)["__eq__"]
        batches = list(loader)
        assert all(isinstance(batch, Batch) for batch in batches)
        assert (vars(Batch)["__init__"], vars(Batch)["__eq__"]) == methods
        return [batch.x.tolist() for batch in batches], batches[1].names
    def double(queue, x): queue.put(Batch(x * 2, [__file__]))
    def start(method):
        import multiprocessing
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=double, args=(queue, 21))
        process.start()
        batch = queue.get()
        process.join(30)
        return isinstance(batch, Batch), batch.x
    def pool():
        import concurrent.futures, multiprocessing
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
            return executor.submit(lambda x: Batch(x, []), 3).result(30)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_loader_workers_are_sent_what_a_cell_made_and_send_it_back(
    tmp_path: Any, method: str
) -> None:
    cell = run_cell(LOADERS)
    numbers, names = value_of(tmp_path, cell["read"], method)
    assert numbers == [[0, 1, 4, 9], [16, 25, 36, 49]]
    assert names == ["16", "25", "36", "49"]


def test_processes_that_a_cells_function_starts_are_sent_its_functions(tmp_path: Any) -> None:
    cell = run_cell(LOADERS)
    cell["__file__"] = "x"
    assert value_of(tmp_path, cell["start"], "spawn") == (True, 42)
    assert value_of(tmp_path, cell["pool"]) == cell["Batch"](3, [])
