"""LaunchSpec: what can be asked for, and how a wrong request is answered."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from enum import Enum
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_accelerate.errors import NbAccelerateError, SpecError
from nb_accelerate.spec import SETTINGS, LaunchSpec, Setting, checked

unhurried = settings(deadline=None)  # a busy machine is no failure

BY_NAME = {setting.name: setting for setting in SETTINGS}


# ---------------------------------------------------------------- four faces
def test_every_field_has_a_setting_with_a_sentence_and_the_same_default():
    assert [s.name for s in SETTINGS] == [f.name for f in fields(LaunchSpec)]
    for setting in SETTINGS:
        assert setting.help.endswith(".")
        assert setting.help[0] != " "
        assert setting.default == getattr(LaunchSpec(), setting.name)


def test_a_setting_tells_its_kind_choices_and_whether_it_may_be_left_open():
    assert BY_NAME["hardware"].choices == ("auto", "cpu", "cuda", "mps", "xpu", "tpu")
    assert BY_NAME["hardware"].kind is str
    assert (BY_NAME["num_processes"].kind, BY_NAME["num_processes"].optional) == (int, True)
    assert (BY_NAME["timeout_seconds"].kind, BY_NAME["timeout_seconds"].optional) == (float, True)
    assert (BY_NAME["grace_seconds"].kind, BY_NAME["grace_seconds"].optional) == (float, False)
    assert (BY_NAME["run_root"].kind, BY_NAME["run_root"].optional) == (str, True)


def test_no_two_settings_share_a_name():
    names = [name for setting in SETTINGS for name in setting.names]
    assert len(names) == len(set(names))


def test_every_default_is_a_value_that_its_setting_accepts():
    assert checked(LaunchSpec()) == LaunchSpec()


def test_a_spec_cannot_be_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        LaunchSpec().num_processes = 2  # type: ignore[misc]


# ---------------------------------------------------------------- round trip
def accepted_values(setting: Setting) -> st.SearchStrategy[object]:
    """Values in their one spelling that `setting` accepts."""
    if setting.name == "use_port":
        values = st.just("") | st.integers(1, 65535).map(str)
    elif setting.choices:
        values = st.sampled_from(setting.choices)
    elif setting.kind is int:
        values = st.integers(int(setting.least or 0), 10_000)
    elif setting.kind is float:
        values = st.floats(0.001, 1e6)
    else:
        values = st.text(max_size=20)
    return st.none() | values if setting.optional else values


specs = st.builds(LaunchSpec, **{s.name: accepted_values(s) for s in SETTINGS})


@unhurried
@given(specs)
def test_settings_survive_json_and_come_back_as_an_equal_spec(spec):
    assert LaunchSpec.from_settings(json.loads(json.dumps(spec.to_settings()))) == spec


@unhurried
@given(specs)
def test_checking_a_checked_spec_changes_nothing(spec):
    assert checked(checked(spec)) == checked(spec)


def test_settings_of_an_accelerate_config_are_understood():
    spec = LaunchSpec.from_settings(
        {
            "num_machines": 2,
            "machine_rank": 1,
            "main_process_ip": "10.0.0.1",
            "main_process_port": 29500,
            "num_cpu_threads_per_process": 4,
        }
    )
    assert spec == LaunchSpec(
        num_nodes=2, node_rank=1, master_addr="10.0.0.1", use_port="29500", threads_per_rank=4
    )


# ---------------------------------------------------------------- spellings
class Precision(Enum):
    """As Accelerate's own enumerations are made."""

    BF16 = "bf16"


class Index:
    """A whole number of another library, such as numpy's."""

    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("name", "given_value", "kept"),
    [
        ("mixed_precision", "FP16", "fp16"),
        ("mixed_precision", Precision.BF16, "bf16"),
        ("num_processes", Index(), 3),
        ("num_processes", None, None),
        ("use_port", 29500, "29500"),
        ("use_port", "0", ""),
        ("use_port", 0, ""),
        ("timeout_seconds", 5, 5.0),
        ("grace_seconds", 0, 0.0),
        ("run_root", PurePosixPath("runs/mine"), "runs/mine"),
    ],
)
def test_other_spellings_of_a_value_become_the_one(name, given_value, kept):
    value = getattr(LaunchSpec.from_settings({name: given_value}), name)
    assert value == kept
    assert type(value) is type(kept)


def test_replace_changes_only_what_it_is_told_and_knows_the_other_names():
    spec = LaunchSpec(num_processes=2, hardware="cpu")
    assert spec.replace(num_processes=4) == LaunchSpec(num_processes=4, hardware="cpu")
    assert spec.replace(num_machines=3).num_nodes == 3
    assert spec == LaunchSpec(num_processes=2, hardware="cpu")


# ---------------------------------------------------------------- refusals
def refusal(**settings: object) -> str:
    with pytest.raises(SpecError) as caught:
        LaunchSpec.from_settings(settings)
    return str(caught.value)


def test_a_misspelt_setting_is_answered_with_the_closest_and_all_names():
    sentence = refusal(num_proceses=2)
    assert sentence.startswith(
        "'num_proceses' is not a setting of a launch. Did you mean 'num_processes'? Settings: "
    )
    assert all(setting.name in sentence for setting in SETTINGS)


def test_an_unknown_setting_that_is_close_to_none_is_answered_with_all_names():
    sentence = refusal(zzz=2)
    assert sentence.startswith("'zzz' is not a setting of a launch. Settings: hardware, ")
    assert "Did you mean" not in sentence


def test_replace_refuses_an_unknown_setting_too():
    with pytest.raises(SpecError, match="'nodes' is not a setting"):
        LaunchSpec().replace(nodes=2)


def test_a_setting_under_both_its_names_is_refused():
    assert refusal(num_nodes=1, num_machines=2) == (
        "num_nodes and num_machines are two names of one setting, and both are given."
        " Leave one of them out."
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"mixed_precision": "fp32"},
            "mixed_precision='fp32' is not one of 'no', 'fp16', 'bf16', 'fp8'. Did you mean 'no'?",
        ),
        (
            {"mixed_precision": None},
            "mixed_precision=None is not one of 'no', 'fp16', 'bf16', 'fp8'. Did you mean 'no'?",
        ),
        (
            {"hardware": "gpu"},
            "hardware='gpu' is not one of 'auto', 'cpu', 'cuda', 'mps', 'xpu', 'tpu'."
            " Did you mean 'cuda'?",
        ),
        (
            {"start_method": "spwan"},
            "start_method='spwan' is not one of 'auto', 'template', 'fork', 'spawn', 'inline'."
            " Did you mean 'spawn'?",
        ),
        ({"num_processes": 0}, "num_processes=0 is too low: it must be at least 1."),
        ({"num_processes": "2"}, "num_processes='2': give a whole number, not a str."),
        ({"num_processes": 2.0}, "num_processes=2.0: give a whole number, not a float."),
        ({"num_processes": True}, "num_processes=True: give a whole number, not a bool."),
        ({"num_nodes": None}, "num_nodes=None: give a whole number, not None."),
        ({"node_rank": -1}, "node_rank=-1 is too low: it must be at least 0."),
        (
            {"use_port": 70000},
            "use_port=70000 is not a port: give a number from 1 to 65535, or '' for a free one.",
        ),
        (
            {"use_port": "http"},
            "use_port='http' is not a port: give a number from 1 to 65535, or '' for a free one.",
        ),
        ({"master_addr": 7}, "master_addr=7: give a text, not an int."),
        ({"timeout_seconds": "1h"}, "timeout_seconds='1h': give a number, not a str."),
        ({"timeout_seconds": 0}, "timeout_seconds=0.0 is too low: it must be above 0."),
        (
            {"timeout_seconds": float("inf")},
            "timeout_seconds=inf: give a finite number, or leave it out for no limit.",
        ),
        ({"grace_seconds": float("nan")}, "grace_seconds=nan: give a finite number."),
        ({"grace_seconds": -1}, "grace_seconds=-1.0 is too low: it must be at least 0."),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_value_and_the_cure(settings, sentence):
    assert refusal(**settings) == sentence


def test_a_spec_that_was_built_past_the_check_is_refused_by_it():
    with pytest.raises(SpecError, match="hardware='abacus' is not one of"):
        checked(LaunchSpec(hardware="abacus"))  # type: ignore[arg-type]


def test_a_refusal_is_caught_as_a_value_error_and_as_ours():
    assert issubclass(SpecError, ValueError)
    assert issubclass(SpecError, NbAccelerateError)


@unhurried
@given(st.dictionaries(st.sampled_from(sorted(BY_NAME)), st.integers() | st.text() | st.none()))
def test_any_settings_give_a_spec_or_a_sentence(asked):
    try:
        spec = LaunchSpec.from_settings(asked)
    except SpecError as error:
        assert str(error).endswith((".", "?"))  # noqa: PT017 - either outcome is right
    else:
        assert checked(spec) == spec
