"""What is made in cells travels by value, to the ranks, to their loader workers and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.notebooks.kernel import Kernel

# One launch, many verdicts: the ranks look at everything and send it back with new things.
MAKE = """
import functools
from dataclasses import dataclass
from enum import Enum, Flag
from typing import NamedTuple

@dataclass(frozen=True)
class Config:
    rate: float = 0.1
    layers: tuple = (1, 2)

class Colour(Enum):
    RED = 1
    BLUE = "blue"

class Traits(Flag):
    FAST = 1
    GOOD = 2

class Point(NamedTuple):
    x: int
    y: int

class Base:
    registry = []
    def greet(self):
        return f"I am {self.name}"

class Child(Base):
    def __init__(self, name):
        super().__init__()
        self.name = name
    @property
    def loud(self):
        return self.name.upper()
    @staticmethod
    def fixed():
        return 5
    @classmethod
    def made(cls, name):
        return cls(name)
    def __eq__(self, other):
        return isinstance(other, Child) and other.name == self.name
    __hash__ = None

def plain(x, *, y=2):
    return x + y

def counter(start):
    count = start
    def step():
        nonlocal count
        count += 1
        return count
    return step

def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

def nest(depth):
    yield depth
    if depth:
        yield from nest(depth - 1)

shared = [1]
things = {
    "function": plain,
    "lambda": lambda x: x * 2,
    "closure": counter(10),
    "recursion": factorial,
    "generator": nest,
    "partial": functools.partial(plain, y=40),
    "method": Child("bound").greet,
    "class": Child,
    "object": Child("Ada"),
    "dataclass": Config(0.5),
    "enum": Colour.BLUE,
    "flag": Traits.FAST | Traits.GOOD,
    "named tuple": Point(3, 4),
    "identity": (shared, shared),
}
"""

USE = """
def verdicts(things):
    return {
        "function": things["function"](1) == 3,
        "lambda": things["lambda"](4) == 8,
        "closure": [things["closure"](), things["closure"]()] == [11, 12],
        "recursion": things["recursion"](5) == 120,
        "generator": list(things["generator"](2)) == [2, 1, 0],
        "partial": things["partial"](2) == 42,
        "method": things["method"]() == "I am bound",
        "class": things["class"].made("x").loud == "X" and things["class"].fixed() == 5,
        "object": isinstance(things["object"], Child) and things["object"].greet() == "I am Ada",
        "dataclass": isinstance(things["dataclass"], Config) and things["dataclass"] == Config(0.5),
        "enum": things["enum"] is Colour.BLUE,
        "flag": Traits.GOOD in things["flag"],
        "named tuple": isinstance(things["named tuple"], Point) and sum(things["named tuple"]) == 7,
        "identity": things["identity"][0] is things["identity"][1],
    }

def train(things):
    there = verdicts(things)
    made = {
        "function": plain,
        "lambda": lambda x: x * 2,
        "closure": counter(10),
        "recursion": factorial,
        "generator": nest,
        "partial": functools.partial(plain, y=40),
        "method": Child("bound").greet,
        "class": Child,
        "object": Child("Ada"),
        "dataclass": Config(0.5),
            "enum": Colour.BLUE,
        "flag": Traits.FAST | Traits.GOOD,
        "named tuple": Point(3, 4),
        "identity": (there, there),
    }
    return there, things, made

run = notebook_launcher(train, (things,), num_processes=2)
there, sent_back, made_there = run.values[1]
"""

KINDS = [
    "function", "lambda", "closure", "recursion", "generator", "partial", "method", "class",
    "object", "dataclass", "enum", "flag", "named tuple", "identity",
]  # fmt: skip


@pytest.fixture(scope="module")
def travelled(kernel_of_module: Kernel) -> Kernel:
    kernel_of_module.run(MAKE)
    kernel_of_module.run(USE)
    kernel_of_module.run("""
    assert [sent_back["closure"](), things["closure"]()] == [13, 11]  # the rank counted on its own
    sent_back["closure"] = counter(10)
    back, made_back = verdicts(sent_back), verdicts(made_there)
    """)
    return kernel_of_module


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cell_made_is_whole_in_the_rank(travelled: Kernel, kind: str) -> None:
    assert travelled.ask(f"there[{kind!r}]")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_rank_sends_back_is_whole_in_the_kernel(travelled: Kernel, kind: str) -> None:
    assert travelled.ask(f"back[{kind!r}]")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_rank_made_is_whole_in_the_kernel(travelled: Kernel, kind: str) -> None:
    assert travelled.ask(f"made_back[{kind!r}]")


def test_classes_of_the_kernel_are_still_themselves(travelled: Kernel) -> None:
    """What comes back refers to the kernel's classes and does not replace their methods."""
    assert (
        travelled.ask("""[
        made_there["class"] is Child,
        type(made_there["object"]) is Child,
        Child.greet.__globals__ is globals(),
        plain.__globals__ is globals(),
    ]""")
        == [True] * 4
    )


@pytest.mark.parametrize("options", ["slots=True", "slots=True, frozen=True"])
def test_objects_with_slots_travel_both_ways(kernel: Kernel, options: str) -> None:
    kernel.run(f"""
    from dataclasses import dataclass

    @dataclass({options})
    class Slotted:
        name: str
        values: list

    def train(given):
        return given == Slotted("s", [1]), hasattr(given, "__dict__"), given

    run = notebook_launcher(train, (Slotted("s", [1]),), num_processes=2)
    """)
    assert kernel.ask("[v[:2] for v in run.values]") == [[True, False]] * 2
    assert kernel.ask("run.value[2] == Slotted('s', [1])")


def test_a_cells_function_sees_the_kernels_own_names_only(kernel: Kernel) -> None:
    kernel.run("""
    def look():
        import __main__
        return __name__, sorted(n for n in vars(__main__) if "nb_accelerate" in n)

    run = notebook_launcher(look, num_processes=2)
    """)
    assert kernel.ask("run.value") == ["__main__", []]


def test_the_source_of_a_cell_can_be_read_in_the_rank(kernel: Kernel) -> None:
    kernel.run("""
    def documented():
        import inspect
        return inspect.getsource(documented)  # and this is its last line

    run = notebook_launcher(documented, num_processes=2)
    """)
    assert "and this is its last line" in kernel.ask("run.value")


def test_keyword_arguments_and_defaults_travel(kernel: Kernel) -> None:
    kernel.run("""
    def f(a, b=2, *rest, c, d=4, **more):
        return [a, b, rest, c, d, more]

    run = notebook_launcher(f, (1, 5, 6), 2, kwargs={"c": 3, "e": 7})
    """)
    assert kernel.ask("run.values[1]") == [1, 5, [6], 3, 4, {"e": 7}]


def test_a_partial_and_a_callable_object_can_be_what_is_launched(kernel: Kernel) -> None:
    kernel.run("""
    import functools

    class Trainer:
        def __init__(self, rate):
            self.rate = rate
        def __call__(self, x):
            return self.rate * x
        def fit(self):
            return self.rate

    told = [
        notebook_launcher(functools.partial(lambda x, y: x + y, 1), (2,), 2).value,
        notebook_launcher(Trainer(2), (3,), 2).value,
        notebook_launcher(Trainer(4).fit, (), 2).value,
    ]
    """)
    assert kernel.ask("told") == [3, 6, 4]


# ---------------------------------------------------------------- refused
LOCKED = """
class Model:
    def __init__(self):
        self.guard = threading.Lock()

model = Model()

def train():
    here()
    return model
"""


def test_what_cannot_travel_is_named_before_anything_starts(kernel: Kernel) -> None:
    kernel.run(LOCKED)
    error = kernel.fails("notebook_launcher(train, num_processes=2)")
    assert error.name == "PayloadError"
    assert "model" in error.text
    assert "guard" in error.text
    assert "lock" in error.text
    assert kernel.witnesses() == []


def test_an_argument_that_cannot_travel_is_named(kernel: Kernel) -> None:
    error = kernel.fails("""
    def train(stream):
        here()

    notebook_launcher(train, ((x for x in range(3)),), num_processes=2)
    """)
    assert error.name == "PayloadError"
    assert "generator" in error.text
    assert kernel.witnesses() == []


# ---------------------------------------------------------------- loader workers
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loader_workers_read_a_dataset_that_a_cell_made(kernel: Kernel, context: str) -> None:
    kernel.run(f"""
    import torch

    @dataclass(frozen=True)
    class Scale:
        by: int

    class Numbers(torch.utils.data.Dataset):
        def __init__(self, scale):
            self.scale = scale
        def __len__(self):
            return 6
        def __getitem__(self, index):
            return transform(index) * self.scale.by

    def transform(x):
        return x + 1

    def load(dataset):
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=2, num_workers=1, multiprocessing_context={context!r},
            worker_init_fn=lambda index: here("loader"), collate_fn=lambda rows: rows,
        )
        return list(loader)

    run = notebook_launcher(load, (Numbers(Scale(10)),), num_processes=2)
    """)
    assert kernel.ask("list(run.values)") == [[[10, 20], [30, 40], [50, 60]]] * 2
    assert len(kernel.witnesses(2)) == 2
    kernel.expect_all_gone(3)


def test_processes_that_a_rank_spawns_know_what_cells_made(kernel: Kernel) -> None:
    kernel.run("""
    def square(x):
        return x * x

    def spread():
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.map(square, [1, 2, 3])

    run = notebook_launcher(spread, num_processes=1)
    """)
    assert kernel.ask("run.value") == [1, 4, 9]
