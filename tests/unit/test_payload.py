from __future__ import annotations

import functools
import gc
import importlib
import inspect
import linecache
import mmap
import os
import pickle
import subprocess
import sys
import threading
import traceback
import tracemalloc
import types
from collections import OrderedDict
from dataclasses import FrozenInstanceError
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest

from nb_accelerate import payload
from nb_accelerate.errors import PayloadError, WorkerDied, WorkerRaised
from nb_accelerate.payload import traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CELL = "/nowhere/cell_7.py"


def run_cell(source: str, filename: str = CELL) -> dict[str, Any]:
    """What a notebook does with a cell: a namespace of `__main__`, lines in linecache, no file."""
    text = dedent(source)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    payload.restore_sources({filename: text})
    exec(compile(text, filename, "exec"), namespace)
    return namespace


def there_and_back(obj: object) -> Any:
    with payload.pack(obj) as packed:
        return unpacked(packed)


def unpacked(packed: payload.Packed) -> Any:
    return payload.unpack(packed.parcel, None if packed.fd is None else os.dup(packed.fd))


def called(packed: payload.Packed) -> Any:
    function, args, kwargs, _ = unpacked(packed)
    return function(*args, **kwargs)


# ---------------------------------------------------------------- shared memory
def test_small_things_travel_without_a_file() -> None:
    packed = payload.pack({"a": np.arange(10)})
    assert packed.fd is None
    assert packed.parcel.spans == ()
    assert unpacked(packed)["a"].tolist() == list(range(10))


def test_big_arrays_lie_on_pages_of_a_file_and_not_in_the_pickle() -> None:
    arrays = [np.arange(20_000.0), np.ones(100_001, dtype=np.uint8), np.arange(6).reshape(2, 3)]
    with payload.pack(arrays) as packed:
        assert len(packed.parcel.body) < 2000
        assert [size for _, size in packed.parcel.spans] == [160_000, 100_001]
        assert all(offset % mmap.PAGESIZE == 0 for offset, _ in packed.parcel.spans)
        for sent, came in zip(arrays, unpacked(packed), strict=True):
            np.testing.assert_array_equal(sent, came)


def test_a_rank_may_write_and_nobody_else_sees_it() -> None:
    array = np.zeros(50_000)
    with payload.pack(array) as packed:
        first, second = unpacked(packed), unpacked(packed)
        first[:] = 7
        assert second.sum() == 0
        assert unpacked(packed).sum() == 0
    assert array.sum() == 0
    assert first.sum() == 7 * 50_000


def test_arrays_that_may_not_be_written_stay_so() -> None:
    array = np.zeros(50_000)
    array.flags.writeable = False
    assert not there_and_back(array).flags.writeable


def test_an_array_keeps_the_shared_memory_alive() -> None:
    came = there_and_back({"x": np.arange(50_000), "y": np.ones(50_000)})
    part = came.pop("x")[40_000:]
    del came
    gc.collect()
    assert part[0] == 40_000


def test_a_big_pickle_is_the_last_span_of_the_file() -> None:
    obj = [np.arange(50_000), "x" * 200_000]
    with payload.pack(obj) as packed:
        assert packed.parcel.body == b""
        assert len(packed.parcel.spans) == 2
        assert unpacked(packed)[1] == obj[1]


def test_nothing_is_copied_on_the_way_into_shared_memory() -> None:
    array = np.ones(4_000_000)
    tracemalloc.start()
    payload.pack(array).close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < array.nbytes / 20


def test_unpacking_closes_the_descriptor() -> None:
    with payload.pack(np.ones(50_000)) as packed:
        descriptor = os.dup(packed.fd)
        payload.unpack(packed.parcel, descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_closing_twice_spares_who_has_the_number_by_then() -> None:
    packed = payload.pack(np.ones(50_000))
    number = packed.fd
    packed.close()
    other = os.memfd_create("other")
    packed.close()
    assert other == number
    os.close(other)
    assert packed.fd is None


def test_a_system_without_memfd_uses_a_file_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with payload.pack(np.arange(50_000)) as packed:
        assert list(tmp_path.iterdir()) == []
        assert unpacked(packed)[-1] == 49_999


def test_a_packed_thing_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        payload.pack(1).parcel = None  # type: ignore[misc]


# ---------------------------------------------------------------- code by value
MAKERS = """
    import functools, enum, dataclasses, typing

    SCALE = 3

    def double(x): return helper(x) * 2
    def helper(x): return x * SCALE
    cube = lambda x: x ** 3
    def adder(n):
        def add(x): return x + n
        return add
    add_five = adder(5)
    add_two = functools.partial(helper, 2)
    def factorial(n): return 1 if n < 2 else n * factorial(n - 1)
    @functools.lru_cache(maxsize=7)
    def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
    def with_defaults(x, y=4, *, z=5): return x, y, z
    def sub():
        class Local:
            def value(self): return SCALE
        return Local
    class Base:
        def name(self): return "base"
    class Net(Base):
        count = 0
        def __init__(self, size=2): self.size = size
        def name(self): return "net of " + super().name()
        @property
        def area(self): return self.size ** 2
        @classmethod
        def make(cls): return cls(9)
        @staticmethod
        def twice(x): return double(x)
    @dataclasses.dataclass
    class Point:
        x: int
        y: list = dataclasses.field(default_factory=list)
    @dataclasses.dataclass(frozen=True, slots=True)
    class Slotted:
        x: int
    class Color(enum.Enum):
        RED = 1
        GREEN = 2
        def loud(self): return self.name + "!"
    class Pair(typing.NamedTuple):
        a: int
        b: int
"""


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("double", (2,), 12),
        ("cube", (2,), 8),
        ("add_five", (1,), 6),
        ("add_two", (), 6),
        ("factorial", (5,), 120),
        ("fibonacci", (60,), 1548008755920),
        ("with_defaults", (1,), (1, 4, 5)),
    ],
)
def test_functions_of_cells_travel_by_value(
    name: str, args: tuple[int, ...], expected: object
) -> None:
    function = run_cell(MAKERS)[name]
    assert called(payload.pack_call(function, args, {})) == expected


def test_a_cached_function_of_a_cell_has_a_cache_of_its_own_where_it_arrives() -> None:
    fibonacci = run_cell(MAKERS)["fibonacci"]
    came = there_and_back(fibonacci)
    assert came(60) == fibonacci(60)
    assert came.cache_info()[:3] == fibonacci.cache_info()[:3] == (58, 61, 7)
    assert came.__name__ == "fibonacci"


def test_instances_of_cell_classes_come_back_as_the_same_class() -> None:
    cell = run_cell(MAKERS)
    sent = (
        cell["Net"](4),
        cell["Point"](1, [2]),
        cell["Slotted"](3),
        cell["Color"].RED,
        cell["Pair"](1, 2),
        cell["sub"]()(),
        cell["Net"](5).name,
    )
    came = there_and_back(sent)
    assert [type(c) for c in came] == [type(s) for s in sent]
    assert came[3] is cell["Color"].RED
    assert came[1:3] == sent[1:3]
    assert came[0].area == 16
    assert came[6]() == "net of base"


def test_a_value_that_returns_leaves_the_kernels_class_as_it_is() -> None:
    cell = run_cell(MAKERS)
    net, color = cell["Net"], cell["Color"]
    before = net.__init__, net.name, net.area, vars(net)["make"], color.loud
    came = unpacked(payload.pack_value([net(4), color.RED]))
    assert isinstance(came[0], net)
    assert (net.__init__, net.name, net.area, vars(net)["make"], color.loud) == before


def test_a_function_keeps_its_file_name_all_the_way_down() -> None:
    function = run_cell("def outer():\n    def inner(): return 1\n    return inner")["outer"]
    packed = payload.pack(function)
    assert packed.filenames == {CELL}
    came = unpacked(packed)
    assert came.__code__.co_filename == CELL
    assert came().__code__.co_filename == CELL


def test_what_travels_by_name_adds_no_file_names() -> None:
    assert payload.pack((np.linalg.norm, subprocess.run)).filenames == frozenset()


def make_module(folder: Path, name: str, source: str) -> types.ModuleType:
    (folder / f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path, whose modules are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_functions_of_modules_run_the_newest_code_on_disk(folder: Path) -> None:
    module = make_module(folder, "helpers_on_disk", "def answer(): return 'old'")
    packed = payload.pack_call(module.answer, (), {})
    (folder / "helpers_on_disk.py").write_text("def answer(): return 'new'")
    del sys.modules["helpers_on_disk"]
    assert called(packed) == "new"


MODULE = "K = 6\ndef answer(): return K * 7\nclass Thing:\n    def value(self): return answer()"


def test_functions_of_modules_made_at_run_time_travel_by_value(folder: Path) -> None:
    module = types.ModuleType("made_at_run_time")
    exec(MODULE, vars(module))
    sys.modules["made_at_run_time"] = module
    packed = payload.pack((module.answer, module.Thing()))
    del sys.modules["made_at_run_time"]
    answer, thing = unpacked(packed)
    assert answer() == thing.value() == 42


def test_functions_of_a_module_whose_file_is_gone_travel_by_value(folder: Path) -> None:
    module = make_module(folder, "file_gone", MODULE)
    (folder / "file_gone.py").unlink()
    function = run_cell("def train(): return helpers.answer()")["train"]
    function.__globals__["helpers"] = module
    packed = payload.pack(function)
    del sys.modules["file_gone"]
    assert unpacked(packed)() == 42


def test_functions_of_a_file_loaded_by_hand_travel_by_value(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    path = folder / "elsewhere" / "by_hand.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("by_hand", path)
    module = sys.modules["by_hand"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    packed = payload.pack(module.answer)
    del sys.modules["by_hand"]
    assert unpacked(packed)() == 42


def test_packages_and_their_submodules_travel_by_name(folder: Path) -> None:
    (folder / "kit").mkdir()
    (folder / "kit" / "__init__.py").write_text("")
    (folder / "kit" / "tools.py").write_text("def answer(): return 42")
    tools = importlib.import_module("kit.tools")
    assert b"kit.tools" in payload.pack(tools.answer).parcel.body
    assert payload.pack((tools.answer, OrderedDict, functools.wraps)).filenames == frozenset()


def test_packing_leaves_cloudpickles_registry_as_it_was(folder: Path) -> None:
    module = make_module(folder, "file_gone_too", "def answer(): return 42")
    (folder / "file_gone_too.py").unlink()
    assert payload.pack(module.answer).filenames
    assert cloudpickle.list_registry_pickle_by_value() == set()


# ---------------------------------------------------------------- sources
def test_a_traceback_shows_the_cells_own_line() -> None:
    source = "def train():\n    raise ValueError('no')  # the line"
    function = run_cell(source)["train"]
    packed = payload.pack(function)
    sources, labels = payload.cell_sources(packed.filenames)
    linecache.clearcache()

    payload.restore_sources(sources)
    linecache.checkcache()
    came = unpacked(packed)
    with pytest.raises(ValueError, match="no") as caught:
        came()
    assert "# the line" in "".join(traceback.format_exception(caught.value))
    assert inspect.getsource(came) == source
    assert labels == {}


def test_files_are_read_by_the_worker_itself() -> None:
    assert payload.cell_sources({__file__}) == ({}, {})


def test_cells_have_the_names_that_ipython_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def format_code_name(filename: str) -> tuple[str, str] | None:
        return ("Cell", "In[7]") if filename == CELL else None

    compiler = types.SimpleNamespace(format_code_name=format_code_name)
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    run_cell("x = 1")
    run_cell("x = 2", "/nowhere/other.py")
    sources, labels = payload.cell_sources({CELL, "/nowhere/other.py"})
    assert sources == {CELL: "x = 1", "/nowhere/other.py": "x = 2"}
    assert labels == {CELL: "Cell In[7]"}


# ---------------------------------------------------------------- refusals
CAPTURES = """
    import threading, functools

    lock = threading.Lock()
    class Writer:
        def __init__(self): self.event = threading.Event()
    class Holder:
        def __init__(self): self.writer = Writer()
    def uses_global(): return lock
    def uses_helper(): return uses_global()
    def closure():
        mutex = threading.Lock()
        def train(): return mutex
        return train
    def default(x, guard=threading.Lock()): return guard
    class Uses:
        def method(self): return lock
    class Keeps:
        kept = threading.Lock()
    bound = functools.partial(print, 1, guard=threading.Lock())
    @functools.cache
    def cached(): return lock
    def in_comprehension(): return [lock for _ in range(3)]
    class Stubborn:
        def __getstate__(self): raise RuntimeError("not me")
    class Hides:
        def __init__(self): self.lock = threading.Lock()
        def __getstate__(self): return {}
"""


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("uses_global, (), {}", "global `lock` used by `uses_global` is a _thread.lock"),
        ("uses_helper, (), {}", "global `lock` used by `uses_global` is a _thread.lock"),
        ("closure(), (), {}", "closure variable `mutex` of `closure.train` is a _thread.lock"),
        ("default, (1,), {}", "default of parameter `guard` of `default` is a _thread.lock"),
        ("cached, (), {}", "global `lock` used by `cached`"),
        ("in_comprehension, (), {}", "global `lock` used by `in_comprehension`"),
        ("Uses().method, (), {}", "global `lock` used by `Uses.method`"),
        ("print, (Uses(),), {}", "global `lock` used by `Uses.method`"),
        ("print, (Keeps,), {}", "attribute `kept` of class `Keeps`"),
        ("bound, (), {}", "`partial.keywords['guard']`, in the function `partial`"),
        ("print, (1, lock), {}", "`args[1]`, in argument 2, is a _thread.lock"),
        ("print, (Holder(),), {}", "`args[0].writer.event`, in argument 1, is a threading.Event"),
        ("print, (), {'a': [{'b': lock}]}", "`a[0]['b']`, in keyword argument `a`"),
        ("print, ((i for i in ()),), {}", "is a generator"),
        ("print, (Stubborn(),), {}", "`args[0]`, in argument 1, is a Stubborn (not me)"),
        ("print, ({1: 2, lock: 3},), {}", "`a key of args[0]`"),
    ],
)
def test_what_cannot_travel_is_named_before_anything_starts(expression: str, words: str) -> None:
    function, args, kwargs = eval(expression, run_cell(CAPTURES))
    with pytest.raises(PayloadError) as caught:
        payload.pack_call(function, args, kwargs)
    assert words in str(caught.value)
    assert "inside the function" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_refusal_names_what_is_beside_the_call() -> None:
    with pytest.raises(PayloadError, match="what travels beside the call"):
        payload.pack_call(print, (), {}, [threading.Lock()])


@pytest.mark.parametrize(
    ("thing", "cure"),
    [
        (lambda: (i for i in ()), "Pass what it is made from"),
        (threading.Lock, "in another process it would be another one"),
        (lambda: sys._getframe(), "or pass what it is made from"),
    ],
)
def test_a_refusal_tells_the_cure(thing: Callable[[], object], cure: str) -> None:
    with pytest.raises(PayloadError, match=cure):
        payload.pack_call(print, (thing(),), {})


def test_a_refusal_of_an_open_file_tells_to_open_it_in_the_worker(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("wb") as file,
        pytest.raises(PayloadError, match=r"_io.BufferedWriter .* open it inside the function"),
    ):
        payload.pack_call(print, (file,), {})


def test_circular_things_that_cannot_travel_are_refused_all_the_same() -> None:
    ring: list[object] = [threading.Lock()]
    ring.insert(0, ring)
    with pytest.raises(PayloadError, match=r"`args\[0\]\[1\]`"):
        payload.pack_call(print, (ring,), {})


def test_what_a_class_leaves_out_of_its_state_is_no_obstacle() -> None:
    hides = run_cell(CAPTURES)["Hides"]()
    assert vars(there_and_back(hides)) == {}


def test_a_call_travels_in_one_so_that_shared_things_stay_shared() -> None:
    shared = [1]
    packed = payload.pack_call(print, (shared,), {"again": shared}, [shared])
    _, args, kwargs, beside = unpacked(packed)
    assert args[0] is kwargs["again"] is beside[0]


def test_a_return_value_that_cannot_travel_is_named() -> None:
    cell = run_cell("class Model: pass")
    model = cell["Model"]()
    model.hook = (i for i in ())
    with pytest.raises(PayloadError) as caught:
        payload.pack_value({"loss": 1.0, "model": model})
    assert "The returned value's ['model'].hook is a generator" in str(caught.value)
    with pytest.raises(PayloadError, match="The returned value is a generator"):
        payload.pack_value(model.hook, ["state"])


def test_a_return_value_may_have_company() -> None:
    assert unpacked(payload.pack_value(1, [2])) == (1, [2])
    assert unpacked(payload.pack_value(None)) is None


# ---------------------------------------------------------------- the report
def test_a_report_tells_what_travels_and_how() -> None:
    cell = run_cell("""
        import threading
        import numpy as np
        data = np.ones(100_000)
        lock = threading.Lock()
        def scale(x): return np.sum(data) * x
        class Net:
            def forward(self): return scale(1)
        def train(rate): return Net(), lock
    """)
    report = payload.explain(cell["train"], (0.1,))
    rows = {row.name: row for row in report.rows}
    assert set(rows) == {"train", "args[0]", "Net", "lock", "scale", "np", "data"}
    assert rows["data"].where == "global `data` used by `scale`"
    assert rows["data"].type == "numpy.ndarray"
    assert 800_000 <= rows["data"].num_bytes < 802_000
    assert (rows["np"].travels, rows["np"].why) == (True, "by name")
    assert (rows["scale"].why, rows["scale"].made_at) == ("by value", f"{CELL}:6")
    assert rows["Net"].made_at == f"{CELL}:8"
    assert not rows["lock"].travels
    assert "global `lock` used by `train`" in rows["train"].why
    assert report.total_bytes > 800_000


def test_a_report_counts_shared_things_once() -> None:
    data = np.ones(100_000)
    report = payload.explain(print, (data, [data]))
    assert 800_000 <= report.total_bytes < 802_000


def test_a_report_is_a_table_for_text_and_for_notebooks() -> None:
    report = payload.explain(print, ("<b>", np.ones(100_000)), {"lock": threading.Lock()})
    text = str(report)
    assert text.splitlines()[0].split() == [
        "name",
        "where",
        "type",
        "size",
        "travels",
        "made",
        "at",
    ]
    assert "800 kB" in text
    assert "NO: keyword argument `lock` is a _thread.lock" in text
    page = report._repr_html_()
    assert page.count("<tr>") == len(report.rows) + 1
    assert "numpy.ndarray" in page


# ---------------------------------------------------------------- exceptions
ERRORS = """
    class Plain(Exception): pass
    class Coded(Exception):
        def __init__(self, code, *, detail):
            super().__init__(f"code {code}")
            self.code, self.detail = code, detail
    class Missing(FileNotFoundError):
        def __init__(self, name):
            super().__init__(2, "not there", name)
            self.name = name
    class Choosy(Exception):
        def __new__(cls, *, must): return super().__new__(cls)
        def __init__(self, *, must): self.must = must
    class Reduced(Exception):
        def __reduce__(self): return Reduced, ("again",)
    class Spoiled(Exception):
        def __reduce__(self): raise RuntimeError("never")
    class Explodes(Exception):
        def __reduce__(self): return explode, ()
    def explode(): raise RuntimeError("on arrival")
"""


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def rebuilt(error: BaseException) -> BaseException:
    packed = payload.pack_error(raised(error))
    assert packed is not None
    again, trace = payload.unpack_error(packed.parcel, packed.fd)
    assert trace is not None
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    return again


def cell_error(expression: str) -> BaseException:
    return eval(expression, run_cell(ERRORS))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "x.csv"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(4),
        ModuleNotFoundError("no foo", name="foo", path="p"),
        SyntaxError("bad", ("f.py", 1, 2, "x =", 1, 3)),
        AssertionError(),
        subprocess.CalledProcessError(1, ["ls"]),
        pickle.PicklingError("cannot"),
        WorkerDied("rank 1 died", rank=1, signal=9),
        np.linalg.LinAlgError("singular"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_as_itself(error: BaseException) -> None:
    again = rebuilt(error)
    assert vars(again) == vars(error)
    for name in ("errno", "filename", "start", "code", "value", "name", "path", "lineno", "rank"):
        assert getattr(again, name, None) == getattr(error, name, None)


@pytest.mark.parametrize(
    "expression",
    ["Plain('x')", "Coded(4, detail='d')", "Missing('f')", "Choosy(must=1)"],
)
def test_an_exception_whose_constructor_wants_something_else_is_not_constructed(
    expression: str,
) -> None:
    error = cell_error(expression)
    assert vars(rebuilt(error)) == vars(error)


def test_an_exception_that_defines_its_own_pickling_is_pickled_that_way() -> None:
    packed = payload.pack_error(cell_error("Reduced('x')"))
    assert payload.unpack_error(packed.parcel, packed.fd)[0].args == ("again",)


@pytest.mark.parametrize("expression", ["Spoiled()", "Explodes()"])
def test_an_exception_that_cannot_be_rebuilt_is_none(expression: str) -> None:
    assert payload.pack_error(raised(cell_error(expression))) is None


def test_what_an_exception_cannot_take_along_is_told_in_words() -> None:
    error = ValueError("bad", threading.Lock())
    error.lock, error.batch = threading.Lock(), np.arange(3)
    packed = payload.pack_error(error)
    again, trace = payload.unpack_error(packed.parcel, packed.fd)
    assert again.args[0] == "bad"
    assert "lock object" in again.args[1]
    assert "lock object" in again.lock
    assert again.batch.tolist() == [0, 1, 2]
    assert trace is None


def test_a_big_attribute_of_an_exception_goes_through_shared_memory() -> None:
    error = ValueError("bad")
    error.batch = np.arange(100_000)
    packed = payload.pack_error(error)
    assert packed.fd is not None
    assert payload.unpack_error(packed.parcel, packed.fd)[0].batch[-1] == 99_999


def test_notes_causes_and_contexts_come_along() -> None:
    def fail() -> None:
        try:
            try:
                1 / 0  # noqa: B018
            except ZeroDivisionError as error:
                raise KeyError("inner") from error
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    with pytest.raises(ValueError, match="outer") as caught:
        fail()
    caught.value.add_note("rank 1 of 2")
    again = rebuilt(caught.value)
    assert again.__notes__ == ["rank 1 of 2"]
    assert again.__cause__ is None
    middle = again.__context__
    assert isinstance(middle, KeyError)
    assert isinstance(middle.__cause__, ZeroDivisionError)
    assert middle.__context__ is middle.__cause__
    text = "".join(traceback.format_exception(again))
    assert 'raise KeyError("inner") from error' in text
    assert "1 / 0" in text


def test_a_cause_that_cannot_travel_is_told_by_a_stand_in() -> None:
    try:
        raise ValueError("outer") from raised(cell_error("Spoiled('inner')"))
    except ValueError as error:
        cause = rebuilt(error).__cause__
    assert isinstance(cause, WorkerRaised)
    assert str(cause) == "Spoiled: inner"


def test_circular_contexts_come_to_an_end() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__context__, second.__context__ = second, first
    assert rebuilt(first).__context__.__context__ is None


def test_groups_keep_their_members() -> None:
    group = ExceptionGroup("both", [ValueError("a"), cell_error("Coded(1, detail=2)")])
    packed = payload.pack_error(raised(group))
    again = payload.unpack_error(packed.parcel, packed.fd)[0]
    assert type(again) is ExceptionGroup
    assert again.message == "both"
    assert again.exceptions[1].detail == 2


def test_an_exceptions_traceback_shows_the_cells_lines_without_columns() -> None:
    function = run_cell("def train():\n    return   1 + None")["train"]
    with pytest.raises(TypeError) as caught:
        function()
    packed = payload.pack_error(caught.value)
    again, trace = payload.unpack_error(packed.parcel, packed.fd)
    assert again.__traceback__ is trace
    lines = "".join(traceback.format_tb(trace))
    assert "return   1 + None" in lines
    assert "^" not in lines


def test_a_traceback_finds_lines_far_below_the_beginning_of_their_function() -> None:
    lines = ["def train():", *["    pass"] * 5000, "    raise ValueError('far below')"]
    function = run_cell("\n".join(lines))["train"]
    with pytest.raises(ValueError, match="far below") as caught:
        function()
    packed = payload.pack_error(caught.value)
    _, trace = payload.unpack_error(packed.parcel, packed.fd)
    assert traceback.extract_tb(trace)[-1].lineno == 5002
    assert trace.tb_next.tb_frame.f_code.co_firstlineno == 1


@pytest.mark.parametrize("delta", [0, 31, 32, 5000])
def test_a_location_table_puts_all_code_on_one_line(delta: int) -> None:
    code = compile("f(1); g(2); h(3)", "", "exec")
    table = traces._all_on_line(delta, len(code.co_code) // 2)
    moved = code.replace(co_linetable=table, co_firstlineno=7)
    assert set(moved.co_positions()) == {(7 + delta, 7 + delta, None, None)}


def test_an_endless_recursion_has_a_readable_traceback() -> None:
    function = run_cell("def again(n):\n    return again(n + 1)")["again"]
    with pytest.raises(RecursionError) as caught:
        function(0)
    packed = payload.pack_error(caught.value)
    _, trace = payload.unpack_error(packed.parcel, packed.fd)
    assert 100 <= len(traceback.extract_tb(trace)) <= 200


def test_a_parcel_of_an_exception_that_this_process_cannot_rebuild_is_refused(
    folder: Path,
) -> None:
    module = make_module(folder, "has_error", "class Odd(Exception): pass")
    packed = payload.pack_error(module.Odd("x"))
    (folder / "has_error.py").unlink()
    del sys.modules["has_error"]
    importlib.invalidate_caches()
    with pytest.raises(PayloadError, match="No module named 'has_error'"):
        payload.unpack_error(packed.parcel, packed.fd)
