"""The public names: those that `import nb_accelerate` promises, all there and all explained."""

from __future__ import annotations

import inspect
from dataclasses import fields
from types import ModuleType

import pytest

import nb_accelerate

PUBLIC = [
    "Accelerator",
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradScalerKwargs",
    "InitProcessGroupKwargs",
    "LaunchSpec",
    "PartialState",
    "ProfileKwargs",
    "Run",
    "debug_launcher",
    "errors",
    "explain",
    "find_executable_batch_size",
    "get_logger",
    "kill_all",
    "notebook_launcher",
    "ps",
    "runs",
    "skip_first_batches",
    "synchronize_rng_states",
]

LAUNCHER_ARGUMENTS = {
    "function", "args", "num_processes", "mixed_precision", "kwargs", "block", "write_back", "view",
    "timeout", "spec",
}  # fmt: skip

UPSTREAM_ARGUMENTS = [
    "function", "args", "num_processes", "mixed_precision", "use_port", "master_addr", "node_rank",
    "num_nodes", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "rdzv_id", "max_restarts",
    "monitor_interval", "log_line_prefix_template",
]  # fmt: skip

KNOWN_TO_RUN = {
    "value", "values", "metrics", "log", "status", "folder", "wait", "stop", "show", "__await__",
    "__enter__", "__exit__", "__iter__",
}  # fmt: skip


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(set(nb_accelerate.__all__) - {"__version__"}) == PUBLIC


def test_completion_in_a_notebook_offers_every_public_name() -> None:
    assert set(PUBLIC) <= set(dir(nb_accelerate))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_explains_itself(name: str) -> None:
    thing = getattr(nb_accelerate, name)
    assert len((inspect.getdoc(thing) or "").split()) >= 4


@pytest.mark.parametrize("name", [name for name in PUBLIC if name[0].isupper()])
def test_each_public_method_explains_itself(name: str) -> None:
    members = inspect.getmembers_static(getattr(nb_accelerate, name))
    silent = [
        member
        for member, thing in members
        if not member.startswith("_")
        and (inspect.isroutine(thing) or isinstance(thing, property | classmethod | staticmethod))
        and not (thing.__doc__ or "").strip()
    ]
    assert silent == []


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="notebok_launcher"):
        nb_accelerate.notebok_launcher  # noqa: B018


def test_the_launcher_takes_the_arguments_that_the_readme_tells() -> None:
    taken = inspect.signature(nb_accelerate.notebook_launcher).parameters
    assert taken.keys() >= LAUNCHER_ARGUMENTS


def test_upstreams_arguments_come_first_and_in_upstreams_order() -> None:
    taken = inspect.signature(nb_accelerate.notebook_launcher).parameters.values()
    positional = [p.name for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == UPSTREAM_ARGUMENTS


def test_the_launcher_takes_every_setting_by_its_name() -> None:
    taken = inspect.signature(nb_accelerate.notebook_launcher).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    settings = {field.name for field in fields(nb_accelerate.LaunchSpec)}
    assert takes_any or settings <= taken.keys()


def test_a_run_has_the_members_that_the_readme_tells() -> None:
    assert set(dir(nb_accelerate.Run)) >= KNOWN_TO_RUN


def test_errors_is_the_module_whose_names_all_exist() -> None:
    errors = nb_accelerate.errors
    assert isinstance(errors, ModuleType)
    strangers = [
        name
        for name in errors.__all__
        if not issubclass(getattr(errors, name), errors.NbAccelerateError)
    ]
    assert strangers == []
