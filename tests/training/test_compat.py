"""nb_accelerate.compat: upstream's paths and names, and `import accelerate` leading to them."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import nb_accelerate.compat
from nb_accelerate import errors
from nb_accelerate.compat.table import TOP, absent_names, rooms

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

# What upstream's modules hold for themselves.
NOT_OFFERED = {"logger", "description"}

# A program of the real package's own machinery, which is not there to be called.
LEFT_OUT = {"test_utils", "commands.menu"}

QUESTIONS = [
    *(f"utils.convert_bytes({n})" for n in (0, 1023, 1024, 1536, 5 << 30, 3 << 50)),
    *(f"utils.str_to_bool({word!r})" for word in ("yes", "OFF", "1", "f", "maybe")),
    *(
        f"utils.modeling.convert_file_size_to_int({size!r})"
        for size in (7, "5GB", "1.5MiB", "8Kb", "x")
    ),
    *(f"utils.get_pretty_name({thing})" for thing in ("dict", "print", "3", "utils.merge_dicts")),
    *(f"utils.dtype_byte_size(torch.{d})" for d in ("float32", "bool", "float8_e4m3fn", "int8")),
    "utils.dtype_byte_size(utils.CustomDtype.INT4)",
    "utils.merge_dicts({'a': {'b': 1}, 'c': 2}, {'a': {'d': 3}, 'c': 4})",
    "utils.compare_versions('torch', '>=', '2.0')",
    "utils.is_torch_version('<', '1.0')",
    "utils.get_int_from_env(['NOT_SET', 'SEVEN'], 3)",
    "utils.get_int_from_env(['NOT_SET'], 3)",
    "utils.parse_flag_from_env('YES')",
    "utils.parse_choice_from_env('NOT_SET', 'x')",
    "utils.get_cpu_distributed_information().rank",
    "utils.get_cpu_distributed_information().world_size",
    "utils.convert_dict_to_env_variables({'A': '1', 'B': 'x y', '': '2', 'C': ''})",
    "[str(p) for p in utils.PrecisionType], 'bf16' in utils.PrecisionType, 'x' in utils.RNGType",
    "utils.PrecisionType.list(), str(utils.ComputeEnvironment.LOCAL_MACHINE)",
    "sorted(utils.find_tied_parameters(tied)), dict(utils.compute_module_sizes(tied))",
    "dict(utils.compute_module_sizes(tied, dtype=torch.float16))",
    "[n for n, _ in utils.named_module_tensors(norm, recurse=True)]",
    "[n for n, _ in utils.named_module_tensors(norm, include_buffers=False, recurse=True)]",
    "[n for n, _ in utils.get_module_children_bottom_up(nested, return_fqns=True)]",
    "other.is_repeated_blocks(blocks), other.has_repeated_blocks(torch.nn.ModuleList())",
    "other.has_repeated_blocks(torch.nn.Sequential(blocks)), other.has_compiled_regions(blocks)",
    "utils.recursive_getattr(norm, '0.weight').shape",
    "utils.is_peft_model(norm), utils.model_has_dtensor(norm), utils.get_model_tp_size(norm)",
    "utils.are_libraries_initialized('json', 'no_such_library')",
    "type(utils.extract_model_from_parallel(torch.nn.DataParallel(norm))).__name__",
]

PROGRAM = """
import json, sys, torch, {package} as accelerate, {package}.utils as utils
from {package}.utils import modeling, other
linear = torch.nn.Linear(3, 3)
tied = torch.nn.Sequential(linear, torch.nn.Linear(3, 3), linear)
norm = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
nested = torch.nn.Sequential(torch.nn.Sequential(linear, norm), torch.nn.ReLU())
blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(2, 2)])

def answer(question):
    try:
        return repr(eval(question))
    except Exception as error:
        return [base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"][0]

print(json.dumps([answer(question) for question in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def upstream() -> Path:
    """The folder of the real package, which is looked at and not imported here."""
    spec = importlib.util.find_spec("accelerate")
    if spec is None or spec.origin is None:
        pytest.skip("accelerate is not installed")
    return Path(spec.origin).parent


def answers(package: str, questions: list[str]) -> list[str]:
    """What an interpreter of its own, which has imported `package`, answers."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(package=package)],
        input=json.dumps(questions),
        cwd=ROOT,
        env={**os.environ, "SEVEN": "7", "YES": "on", "RANK": "1", "PMI_SIZE": "4"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


# ---------------------------------------------------------------- the table
def test_every_name_of_the_table_is_in_its_room() -> None:
    lost = [
        f"{module}.{name} in {room}"
        for module, names in rooms().items()
        for name, room in names.items()
        if not name.startswith("*")
        and not hasattr(importlib.import_module(f"nb_accelerate.{room}"), name)
    ]
    assert lost == []


def test_every_name_of_the_package_itself_is_somewhere_in_the_table() -> None:
    there = [name for name in TOP if hasattr(nb_accelerate.compat, name)]
    assert sorted(there) == sorted(TOP)


def test_no_name_is_both_here_and_absent() -> None:
    both = {m: names & rooms().get(m, {}).keys() for m, names in absent_names().items()}
    assert not any(both.values())


def test_every_public_name_of_accelerate_can_be_imported_from_ours(upstream: Path) -> None:
    lost = []
    for path in sorted(upstream.rglob("*.py")):
        module = ".".join(path.relative_to(upstream).with_suffix("").parts)
        module = module.removesuffix("__init__").rstrip(".")
        if any(f"{module}.".startswith(f"{other}.") for other in LEFT_OUT):
            continue
        ours = importlib.import_module(f"nb_accelerate.compat.{module}".rstrip("."))
        names = public_names(ast.parse(path.read_text(encoding="utf-8")).body)
        lost += [f"{module}.{name}" for name in names if not hasattr(ours, name)]
    assert lost == []


def public_names(body: list[ast.stmt]) -> Iterator[str]:
    """Functions and classes that a module defines, and constants of the one that holds them."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        if isinstance(node, ast.If):
            yield from public_names([*node.body, *node.orelse])


def test_the_same_name_is_the_same_thing_wherever_it_is_imported_from() -> None:
    from nb_accelerate.compat.utils import operations

    from nb_accelerate import Accelerator
    from nb_accelerate.compat import accelerator, data_loader, utils

    assert accelerator.Accelerator is nb_accelerate.compat.Accelerator is Accelerator
    assert utils.gather is operations.gather
    assert data_loader.send_to_device is utils.send_to_device  # as upstream's imports it


def test_a_module_may_have_the_name_of_a_function_in_it() -> None:
    importlib.import_module("nb_accelerate.compat.utils.tqdm")
    assert not isinstance(nb_accelerate.compat.utils.tqdm, ModuleType)


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"nb_accelerate\.compat\.utils.*no_such_name"):
        nb_accelerate.compat.utils.no_such_name  # noqa: B018


def test_all_of_a_module_is_what_is_really_here() -> None:
    offered = nb_accelerate.compat.utils.__all__
    assert {"gather", "set_seed", "is_torch_version", "WEIGHTS_NAME"} <= set(offered)
    assert "DeepSpeedPlugin" not in offered


def test_a_mirrored_module_travels_by_its_name() -> None:
    module = nb_accelerate.compat.utils.operations
    assert pickle.loads(pickle.dumps(module)) is module


def test_a_name_can_be_replaced_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = nb_accelerate.compat.accelerator.is_xpu_available
    with monkeypatch.context() as patch:
        patch.setattr("nb_accelerate.compat.accelerator.is_xpu_available", "replaced")
        assert nb_accelerate.compat.accelerator.is_xpu_available == "replaced"
    assert nb_accelerate.compat.accelerator.is_xpu_available is original


def test_importing_the_modules_and_their_probes_loads_no_torch() -> None:
    program = (
        "import sys, nb_accelerate.compat as c; c.install(); "
        "from accelerate.utils import is_wandb_available, patch_environment, TORCH_DYNAMO_MODES; "
        "import accelerate.hooks, accelerate.utils.operations; is_wandb_available(); "
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == "False"


# ---------------------------------------------------------------- what is not here
def test_what_this_version_lacks_is_refused_when_it_is_called() -> None:
    from nb_accelerate.compat.utils import DeepSpeedPlugin

    from nb_accelerate.compat import cpu_offload

    with pytest.raises(NotImplementedError, match=r"big_modeling\.cpu_offload"):
        cpu_offload(None)
    with pytest.raises(errors.NotInThisVersion, match=r"dataclasses\.DeepSpeedPlugin"):
        DeepSpeedPlugin(zero_stage=2)


def test_a_class_that_this_version_lacks_can_be_asked_about_and_inherited_from() -> None:
    from nb_accelerate.compat.hooks import ModelHook

    class Hook(ModelHook):
        pass

    assert not isinstance(object(), ModelHook)
    with pytest.raises(errors.NotInThisVersion):
        Hook()


# ---------------------------------------------------------------- as the real ones answer
def test_small_functions_answer_as_accelerate_does(upstream: Path) -> None:
    assert upstream.exists()
    theirs = answers("accelerate", QUESTIONS)
    ours = answers("nb_accelerate.compat", QUESTIONS)
    assert dict(zip(QUESTIONS, ours, strict=True)) == dict(zip(QUESTIONS, theirs, strict=True))


def test_probes_answer_as_accelerate_does(upstream: Path) -> None:
    from nb_accelerate.compat import probes

    assert upstream.exists()
    # Upstream says that the CPU trains in fp16, and then computes in float32.
    names = [n for n in probes.__all__ if n.startswith("is_") and n != "is_fp16_available"]
    calls = [f"utils.imports.{name}()" for name in names]
    assert len(calls) > 50
    theirs, ours = answers("accelerate", calls), answers("nb_accelerate.compat", calls)
    # Upstream's is_megatron_lm_available answers None for no.
    assert ours == [answer.replace("None", "False") for answer in theirs]


def test_constants_are_accelerates(upstream: Path) -> None:
    from nb_accelerate.compat import constants
    from nb_accelerate.compat.table import rooms

    assert upstream.exists()
    files = [name for name in rooms()["utils.constants"] if not name.startswith("*")]
    names = [f"utils.constants.{name}" for name in (*constants.__all__, *files)]
    assert answers("nb_accelerate.compat", names) == answers("accelerate", names)


def test_a_basic_config_is_one_that_accelerate_reads(upstream: Path, tmp_path: Path) -> None:
    from nb_accelerate.compat.utils import write_basic_config

    assert upstream.exists()
    read = "__import__('accelerate.commands.config.config_args', fromlist=['_'])"
    questions = []
    for name in ("config.yaml", "config.json"):
        assert write_basic_config("bf16", tmp_path / name) == tmp_path / name
        with pytest.warns(UserWarning, match="is there already"):
            assert write_basic_config("no", tmp_path / name) is False
        path = str(tmp_path / name)
        questions.append(f"{read}.load_config_from_file({path!r}).mixed_precision")
    assert answers("accelerate", questions) == ["'bf16'", "'bf16'"]


# ---------------------------------------------------------------- the environment
def test_a_patch_of_the_environment_is_taken_back_whatever_happens() -> None:
    from nb_accelerate.compat.utils import clear_environment, patch_environment

    before = dict(os.environ)
    with patch_environment(home="/nowhere", new_name=3):
        assert (os.environ["HOME"], os.environ["NEW_NAME"]) == ("/nowhere", "3")
    with suppress(KeyError), patch_environment(home="/elsewhere"):
        raise KeyError
    with clear_environment():
        assert dict(os.environ) == {}
    assert dict(os.environ) == before


def test_a_purged_function_leaves_no_variable_of_accelerates() -> None:
    from nb_accelerate.compat.utils import patch_environment, purge_accelerate_environment

    @purge_accelerate_environment
    def dirty() -> None:
        os.environ["ACCELERATE_NEW"] = "1"
        os.environ["ACCELERATE_OLD"] = "2"

    with patch_environment(ACCELERATE_OLD="1"):
        dirty()
        assert os.environ["ACCELERATE_OLD"] == "1"
    assert "ACCELERATE_NEW" not in os.environ


# ---------------------------------------------------------------- install
def test_import_accelerate_leads_here_while_it_is_installed() -> None:
    with nb_accelerate.compat.installed():
        import accelerate
        from accelerate.utils.operations import gather

        assert accelerate is nb_accelerate.compat
        assert gather is nb_accelerate.compat.utils.gather
        assert importlib.util.find_spec("accelerate.state") is not None
    assert "accelerate" not in sys.modules
    assert not nb_accelerate.compat.is_installed()


def test_its_version_is_found_by_those_who_ask_for_it() -> None:
    others = importlib.metadata.version("torch")
    with nb_accelerate.compat.installed():
        assert importlib.metadata.version("accelerate") == "1.15.0"
        assert importlib.metadata.packages_distributions()["accelerate"][0] == "accelerate"
        assert importlib.metadata.version("torch") == others


def test_transformers_takes_it_for_an_accelerate_that_is_new_enough() -> None:
    pytest.importorskip("transformers")
    from transformers.utils.import_utils import _is_package_available

    with nb_accelerate.compat.installed():
        assert _is_package_available("accelerate", return_version=True) == (True, "1.15.0")


def test_it_is_refused_once_accelerate_has_been_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", ModuleType("accelerate"))
    with pytest.raises(errors.SpecError, match="restart the kernel"):
        nb_accelerate.compat.install()


def test_installing_twice_is_taken_back_once() -> None:
    finders = list(sys.meta_path)
    with nb_accelerate.compat.installed():
        nb_accelerate.compat.install()
        assert len(sys.meta_path) == len(finders) + 1
        with nb_accelerate.compat.installed():
            pass
        assert nb_accelerate.compat.is_installed()
    assert sys.meta_path == finders


# ---------------------------------------------------------------- nb_accelerate.utils
def test_utils_are_importable_from_the_package_too() -> None:
    from nb_accelerate import utils

    assert len(utils.__all__) > 50
    others = [
        n for n in utils.__all__ if getattr(utils, n) is not getattr(nb_accelerate.compat.utils, n)
    ]
    assert others == []
    assert utils.is_namedtuple is nb_accelerate.compat.utils.operations.is_namedtuple
    with pytest.raises(AttributeError, match="no_such_name"):
        utils.no_such_name  # noqa: B018


def test_an_editor_finds_each_of_them_where_it_is_defined() -> None:
    tree = ast.parse((ROOT / "nb_accelerate" / "utils.py").read_text(encoding="utf-8"))
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nb_accelerate.")
        for alias in node.names
    }
    from nb_accelerate import utils

    assert imported.keys() == set(utils.__all__)
    elsewhere = [
        name
        for name, module in imported.items()
        if getattr(importlib.import_module(module), name) is not getattr(utils, name)
    ]
    assert elsewhere == []


# ---------------------------------------------------------------- weights
def test_a_saved_model_is_loaded_from_its_folder_its_index_or_its_file(tmp_path: Path) -> None:
    import torch
    from nb_accelerate.compat.utils import load_checkpoint_in_model

    from nb_accelerate import Accelerator

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    Accelerator(cpu=True).save_model(model, tmp_path / "whole")
    Accelerator(cpu=True).save_model(model, tmp_path / "cut", max_shard_size=80)
    places = ["whole", "whole/model.safetensors", "cut", "cut/model.safetensors.index.json"]
    for place in places:
        with torch.device("meta"):
            empty = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        load_checkpoint_in_model(empty, tmp_path / place, strict=True)
        assert torch.equal(empty[1].weight, model[1].weight), place
    with pytest.raises(errors.NotInThisVersion, match="device_map='auto'"):
        load_checkpoint_in_model(model, tmp_path / "whole", device_map="auto")
