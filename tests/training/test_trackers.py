"""Trackers: real ones that write files, one of the user's own, and the others' calls."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from nb_accelerate.replica import Replica, acting_as
from nb_accelerate.training import Accelerator
from nb_accelerate.training.trackers import (
    LOGGER_TYPE_TO_CLASS,
    GeneralTracker,
    LoggerType,
    TensorBoardTracker,
    filter_trackers,
    get_available_trackers,
    register_tracker_class,
)

CONFIG = {"lr": 0.01, "epochs": 12, "shuffle": False, "name": "some text"}

# What an Accelerator is told in turn; real Accelerate is told the same in another process.
SCRIPT = """
import sys
from {package} import Accelerator
accelerator = Accelerator(log_with="tensorboard", project_dir=sys.argv[1], cpu=True)
accelerator.init_trackers("project", {config!r})
for step in range(3):
    values = {{"loss": 1 / (step + 1), "step": step, "note": "some text"}}
    accelerator.log(values | {{"both": {{"a": 1.5, "b": step}}}}, step=step)
accelerator.end_training()
"""


class Kept(GeneralTracker):
    """Keeps what it is told; writes it down when it is finished, not before."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self, project_name: str = "", path: Path | None = None, **kwargs) -> None:
        super().__init__()
        self.told: list = [("made", project_name, kwargs)]
        self.path = path

    @property
    def tracker(self):
        return self.told

    def start(self) -> None:
        self.told.append("start")

    def store_init_configuration(self, values) -> None:
        self.told.append(("config", values))

    def log(self, values, step=None, **kwargs) -> None:
        self.told.append((values, step, kwargs))

    def finish(self) -> None:
        self.told.append("finish")
        if self.path is not None:
            self.path.write_text(json.dumps([str(one) for one in self.told]))


@pytest.fixture
def registry():
    before = dict(LOGGER_TYPE_TO_CLASS)
    yield LOGGER_TYPE_TO_CLASS
    LOGGER_TYPE_TO_CLASS.clear()
    LOGGER_TYPE_TO_CLASS.update(before)


# ---------------------------------------------------------------- TensorBoard, really
def events_of(folder: Path) -> dict[str, list]:
    """All scalars and texts of a folder's event files, by folder (without times) and tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list] = {}
    for place in sorted({path.parent for path in folder.rglob("events.*")}):
        events = EventAccumulator(str(place)).Reload()
        where = "" if place == folder else f"{place.name.rstrip('.0123456789')}/"
        tags = events.Tags()
        for tag in tags["scalars"]:
            found[where + tag] = [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in tags["tensors"]:
            texts = [(e.step, list(e.tensor_proto.string_val)) for e in events.Tensors(tag)]
            found[where + tag] = texts
    return found


def run_script(package: str, folder: Path) -> dict[str, list]:
    script = SCRIPT.format(package=package, config=CONFIG)
    run = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    (parameters,) = folder.rglob("hparams.yml")
    return events_of(folder / "project") | {"parameters": yaml.safe_load(parameters.read_text())}


def test_tensorboards_files_hold_what_accelerates_own_hold(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    ours = run_script("nb_accelerate", tmp_path / "ours")
    assert ours["loss"] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert ours["parameters"] == CONFIG
    assert ours == run_script("accelerate", tmp_path / "theirs")


def test_tensorboard_takes_tensors_numpy_numbers_and_odd_hyperparameters(tmp_path):
    pytest.importorskip("tensorboard")
    accelerator = Accelerator(log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("p", {"layers": [1, 2], "nothing": None, "rate": np.float32(0.5)})
    values = {
        "scalar": torch.tensor(1),
        "one": torch.tensor([2.5], requires_grad=True),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "numpy": np.float32(4),
    }
    accelerator.log(values, step=7)
    accelerator.get_tracker("tensorboard").log_images({"picture": np.zeros((1, 3, 4, 4))}, step=7)
    accelerator.end_training()
    events = events_of(tmp_path / "p")
    assert [events[name] for name in values] == [[(7, v)] for v in (1.0, 2.5, 0.5, 4.0)]
    (parameters,) = tmp_path.rglob("hparams.yml")
    kept = yaml.safe_load(parameters.read_text())
    assert kept == {"layers": [1, 2], "nothing": None, "rate": 0.5}


def test_what_was_logged_is_on_disk_before_training_ends(tmp_path):
    pytest.importorskip("tensorboard")
    accelerator = Accelerator(log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("p")
    accelerator.log({"loss": 1.0}, step=3)
    assert events_of(tmp_path / "p") == {"loss": [(3, 1.0)]}
    accelerator.end_training()


def test_tensorboard_without_a_directory_is_refused(tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(ValueError, match="requires a `logging_dir`"):
        Accelerator(log_with="tensorboard")
    assert Accelerator(log_with="tensorboard", logging_dir=tmp_path).log_with == ["tensorboard"]


# ---------------------------------------------------------------- MLflow, really
@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's own making
        yield pytest.importorskip("mlflow")


def test_mlflow_keeps_metrics_parameters_and_files(mlflow, tmp_path):
    config = {"lr": 0.01, "too long": "x" * 10_000} | {f"p{n}": n for n in range(150)}
    given = dict(config)
    accelerator = Accelerator(log_with="mlflow")
    accelerator.init_trackers("project", config, {"mlflow": {"run_name": "first"}})
    accelerator.log({"loss": torch.tensor(0.5), "n": np.int64(3), "text": "no number"}, step=2)
    (tmp_path / "notes.txt").write_text("notes")
    accelerator.get_tracker("mlflow").log_artifact(str(tmp_path / "notes.txt"), "papers")
    run_id = accelerator.get_tracker("mlflow", unwrap=True).info.run_id
    accelerator.end_training()

    run = mlflow.get_run(run_id)
    assert run.data.metrics == {"loss": 0.5, "n": 3.0}
    assert [m.step for m in mlflow.MlflowClient().get_metric_history(run_id, "loss")] == [2]
    assert run.data.params == {k: str(v) for k, v in config.items() if k != "too long"}
    assert config == given
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert mlflow.get_experiment(run.info.experiment_id).name == "project"
    assert [f.path for f in mlflow.artifacts.list_artifacts(run_id=run_id)] == ["papers"]


def test_mlflow_goes_on_with_an_experiment_of_that_name(mlflow):
    ids = []
    for _ in range(2):
        accelerator = Accelerator(log_with="mlflow")
        accelerator.init_trackers("one")
        ids.append(accelerator.get_tracker("mlflow", unwrap=True).info.experiment_id)
        accelerator.end_training()
    assert ids[0] == ids[1]


@pytest.mark.parametrize(("said", "nested"), [("False", False), ("0", False), ("yes", True)])
def test_mlflows_environment_overrules_the_arguments(monkeypatch, said, nested):
    monkeypatch.setenv("MLFLOW_NESTED_RUN", said)
    monkeypatch.setenv("MLFLOW_TAGS", '{"kind": "test"}')
    tracker = LOGGER_TYPE_TO_CLASS["mlflow"]("name", nested_run=not nested)
    assert (tracker.nested_run, tracker.tags) == (nested, {"kind": "test"})


# ---------------------------------------------------------------- one of the user's own
def test_a_tracker_is_told_everything_in_its_order():
    tracker = Kept()
    accelerator = Accelerator(log_with=tracker)
    assert (accelerator.trackers, accelerator.log_with) == ([], [tracker])
    accelerator.init_trackers("project", CONFIG)
    values = {"loss": torch.tensor(1.0), "text": "t"}
    accelerator.log(values, step=4, log_kwargs={"kept": {"commit": True}, "other": {"x": 1}})
    accelerator.log({"loss": 2})
    accelerator.end_training()
    assert accelerator.trackers == [tracker]
    assert tracker.told[1:] == [
        "start",
        ("config", CONFIG),
        (values, 4, {"commit": True}),
        ({"loss": 2}, None, {}),
        "finish",
    ]


def test_a_tracker_is_found_by_its_name():
    accelerator = Accelerator(log_with=[Kept()])
    accelerator.init_trackers("project")
    tracker = accelerator.get_tracker("kept")
    assert isinstance(tracker, Kept)
    assert accelerator.get_tracker("kept", unwrap=True) is tracker.told
    with pytest.raises(ValueError, match=r"'wandb'.*are 'kept'"):
        accelerator.get_tracker("wandb")
    accelerator.end_training()


def test_the_cell_sees_the_numbers_that_trackers_are_told():
    seen = []

    class Watcher:
        def metrics(self, values, step):
            seen.append((dict(values), step))

    with acting_as(Replica(device="cpu", reporter=Watcher())):
        accelerator = Accelerator(log_with=Kept())
        accelerator.init_trackers("project")
        accelerator.log({"loss": 1.0, "text": "t"}, step=1)
        accelerator.end_training()
    assert seen == [({"loss": 1.0, "text": "t"}, 1)]


def test_to_log_before_the_trackers_have_begun_is_said_once():
    accelerator = Accelerator(log_with=Kept())
    with pytest.warns(UserWarning, match="init_trackers was not, so kept got nothing") as caught:
        accelerator.log({"loss": 1.0})
    accelerator.log({"loss": 1.0})  # a second warning would be an error
    assert Path(caught[0].filename) == Path(__file__)
    accelerator.init_trackers("project")
    accelerator.log({"loss": 2.0})
    assert accelerator.trackers[0].told[-1] == ({"loss": 2.0}, None, {})
    accelerator.end_training()


def test_to_begin_again_finishes_what_had_begun(registry):
    register_tracker_class(Kept)
    own = Kept("own")
    accelerator = Accelerator(log_with=["kept", own])
    accelerator.init_trackers("first", init_kwargs={"kept": {"tag": 1}})
    first = accelerator.trackers[0]
    accelerator.init_trackers("second")
    second = accelerator.trackers[0]
    assert first.told == [("made", "first", {"tag": 1}), "start", "finish"]
    assert second.told == [("made", "second", {}), "start"]
    assert own.told == [("made", "own", {}), "start"]  # it is one object, and goes on
    accelerator.end_training()
    accelerator.end_training()
    assert second.told[-1] == own.told[-1] == "finish"
    assert own.told.count("finish") == 1


@pytest.mark.parametrize("lost", ["name", "requires_logging_directory", "tracker"])
def test_a_tracker_that_lacks_an_attribute_says_which(lost):
    members = {"name": "n", "requires_logging_directory": False, "tracker": property(id)}
    del members[lost]
    incomplete = type("Incomplete", (GeneralTracker,), members)
    with pytest.raises(NotImplementedError, match=f"Incomplete is a tracker without {lost}\\."):
        incomplete()


def test_only_whole_classes_of_trackers_are_registered(registry):
    for no_tracker in (dict, Kept(), type("Nameless", (GeneralTracker,), {}), GeneralTracker):
        with pytest.raises(ValueError, match=r"GeneralTracker|has no 'name'"):
            register_tracker_class(no_tracker)
    flagless = type("Flagless", (GeneralTracker,), {"name": "flagless"})
    with pytest.raises(ValueError, match="has no 'requires_logging_directory'"):
        register_tracker_class(flagless)
    other = type("Other", (Kept,), {"name": "tensorboard"})
    with pytest.warns(UserWarning, match="'tensorboard' was TensorBoardTracker and is Other"):
        register_tracker_class(other)
    assert registry["tensorboard"] is other


def test_a_registered_tracker_that_writes_files_is_given_the_directory(registry, tmp_path):
    class Filing(Kept):
        name = "filing"
        requires_logging_directory = True

        def __init__(self, project_name, logging_dir, **kwargs):
            super().__init__(project_name, **kwargs)
            self.logging_dir = logging_dir

    register_tracker_class(Filing)
    with pytest.raises(ValueError, match="requires a `logging_dir`"):
        Accelerator(log_with="filing")
    accelerator = Accelerator(log_with="filing", project_dir=str(tmp_path))
    accelerator.init_trackers("project")
    assert accelerator.trackers[0].logging_dir == str(tmp_path)
    accelerator.end_training()


# ---------------------------------------------------------------- which there are
def test_a_known_tracker_that_is_not_installed_is_left_out_with_one_warning():
    missing = sorted(set(LoggerType) - {LoggerType.ALL, *get_available_trackers()})
    assert "comet_ml" in missing  # or this test has nothing to show
    with pytest.warns(UserWarning, match="aim, comet_ml.*Nothing is tracked") as caught:
        accelerator = Accelerator(log_with=["aim", "comet_ml"])
    assert (len(caught), accelerator.log_with) == (1, [])
    assert Path(caught[0].filename) == Path(__file__)
    accelerator.init_trackers("project", CONFIG)
    accelerator.log({"loss": 1.0})
    own = Kept()
    with pytest.warns(UserWarning, match="comet_ml.*alone.$"):
        assert filter_trackers(["comet_ml", own, own]) == [own]


def test_a_name_that_no_tracker_has_is_refused_with_those_that_have():
    with pytest.raises(ValueError, match=r"'tensorbord' is no tracker.*tensorboard"):
        Accelerator(log_with=["tensorbord"])


def test_all_stands_for_all_that_can_be_had(tmp_path):
    installed = get_available_trackers()
    own = Kept()
    assert filter_trackers([own, "all"], tmp_path) == [own, *installed]
    homeless = [kind for kind in installed if kind in ("tensorboard", "aim")]
    if homeless:
        with pytest.warns(UserWarning, match=f"leaves out {homeless[0]}"):
            assert set(filter_trackers(LoggerType.ALL)) == set(installed) - set(homeless)


def test_a_folder_that_a_tracker_has_left_is_not_its_package(tmp_path, monkeypatch):
    (tmp_path / "swanlab").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "swanlab" not in get_available_trackers()


def test_names_are_enum_members_and_texts_alike():
    assert [str(kind) for kind in LoggerType] == LoggerType.list()
    assert LoggerType("wandb") is LoggerType.WANDB == "wandb"


# ---------------------------------------------------------------- what comes of it in the end
END = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
from test_trackers import Kept
from nb_accelerate import Accelerator
accelerator = Accelerator(log_with=Kept(path=Path(sys.argv[1])))
accelerator.init_trackers("project")
accelerator.log({{"loss": 1}})
raise ValueError("training has failed")
"""


def test_trackers_are_finished_when_training_has_raised(tmp_path):
    path = tmp_path / "told.json"
    script = END.format(folder=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(path)]
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100
    )
    assert "training has failed" in run.stderr
    assert json.loads(path.read_text())[1:] == ["start", "({'loss': 1}, None, {})", "finish"]


def test_an_accelerator_takes_its_trackers_along_and_begins_them_anew():
    import cloudpickle

    accelerator = Accelerator(log_with=Kept())
    accelerator.init_trackers("here")
    there = cloudpickle.loads(cloudpickle.dumps(accelerator))
    assert there.trackers == []
    there.init_trackers("there")
    assert there.trackers[0] is not accelerator.trackers[0]
    for one in (there, accelerator):
        one.end_training()


# ---------------------------------------------------------------- the others, by their calls
class Package:
    """Stands in for a package that is not installed: every call is written down."""

    def __init__(self, calls: list, path: str) -> None:
        self.__dict__["calls"], self.__dict__["path"] = calls, path

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Package(self.calls, f"{self.path}.{name}")

    def __setattr__(self, name, value):
        self.calls.append((f"{self.path}.{name} =", value))

    __setitem__ = __setattr__

    def __call__(self, *args, **kwargs):
        self.calls.append((self.path, *args, kwargs))
        if self.path.endswith((".current_task",)):
            return None
        return Package(self.calls, f"{self.path}()")

    def __eq__(self, other):
        return isinstance(other, Package) and self.path == other.path

    __hash__ = None


BEGUN = {
    "wandb": ("wandb.init", {"project": "p", "tag": 1}),
    "trackio": ("trackio.init", {"project": "p", "tag": 1}),
    "swanlab": ("swanlab.init", {"project": "p", "tag": 1}),
    "comet_ml": ("comet_ml.start", {"project_name": "p", "tag": 1}),
    "aim": ("aim.Run", {"repo": "logs", "tag": 1}),
    "dvclive": ("dvclive.Live", {"tag": 1}),
}

LOGGED = {
    "wandb": [("wandb.init().log", {"loss": 0.5}, {"step": 3})],
    "trackio": [("trackio.init().log", {"loss": 0.5}, {"step": 3})],
    "swanlab": [("swanlab.init().log", {"loss": 0.5}, {"step": 3})],
    "comet_ml": [
        ("comet_ml.start().set_step", 3, {}),
        ("comet_ml.start().log_metric", "loss", 0.5, {"step": 3}),
    ],
    "aim": [("aim.Run().track", 0.5, {"name": "loss", "step": 3})],
    "dvclive": [
        ("dvclive.Live().step =", 3),
        ("dvclive.plots.Metric.could_log", 0.5, {}),
        ("dvclive.Live().log_metric", "loss", 0.5, {}),
        ("dvclive.Live().next_step", {}),
    ],
}

KEPT = {
    "wandb": ("wandb.init().config.update", {"lr": 1}, {"allow_val_change": True}),
    "trackio": ("trackio.config.update", {"lr": 1}, {}),
    "swanlab": ("swanlab.config.update", {"lr": 1}, {}),
    "comet_ml": ("comet_ml.start().log_parameters", {"lr": 1}, {}),
    "aim": ("aim.Run().hparams =", {"lr": 1}),
    "dvclive": ("dvclive.Live().log_params", {"lr": 1}, {}),
}

ENDED = {
    "wandb": "wandb.init().finish",
    "trackio": "trackio.init().finish",
    "swanlab": "swanlab.init().finish",
    "comet_ml": "comet_ml.start().end",
    "aim": "aim.Run().close",
    "dvclive": "dvclive.Live().end",
}


def stand_in(monkeypatch, name: str) -> list:
    """Put a stand-in in the place of a package; what it is called with."""
    calls: list = []
    for module in (name, f"{name}.plots"):
        fake = types.ModuleType(module)
        fake.__spec__ = types.SimpleNamespace(origin="here")
        fake.__getattr__ = Package(calls, module).__getattr__
        monkeypatch.setitem(sys.modules, module, fake)
    return calls


@pytest.mark.parametrize("name", BEGUN)
def test_each_tracker_calls_its_package_as_that_wants_it(monkeypatch, name):
    calls = stand_in(monkeypatch, name)
    accelerator = Accelerator(log_with=name, logging_dir="logs")
    assert (accelerator.log_with, calls) == ([name], [])
    accelerator.init_trackers("p", {"lr": 1}, {name: {"tag": 1}})
    assert BEGUN[name] in calls
    assert KEPT[name] in calls
    calls.clear()
    accelerator.log({"loss": torch.tensor(0.5)}, step=3)
    assert calls == LOGGED[name]
    assert isinstance(accelerator.get_tracker(name, unwrap=True), Package)
    accelerator.end_training()
    assert calls[-1] == (ENDED[name], {})


def test_clearml_sorts_values_into_charts_and_closes_its_own_task(monkeypatch):
    monkeypatch.setenv("CLEARML_TASK", "of the environment")
    calls = stand_in(monkeypatch, "clearml")
    accelerator = Accelerator(log_with="clearml")
    accelerator.init_trackers("p", {"lr": 1})
    assert calls == [
        ("clearml.Task.current_task", {}),
        ("clearml.Task.init", {"project_name": "p", "task_name": "of the environment"}),
        ("clearml.Task.init().connect_configuration", {"lr": 1}, {}),
    ]
    calls.clear()
    accelerator.log({"loss": 1, "eval_loss": 2.0, "note": "dropped"}, step=5)
    accelerator.log({"best": 3})
    accelerator.get_tracker("clearml").log_table("train_table", ["a"], [[1]], step=6)
    accelerator.end_training()
    log = "clearml.Task.init().get_logger"
    assert [call for call in calls if call != (log, {})] == [
        (
            f"{log}().report_scalar",
            {"title": "loss", "series": "train", "value": 1, "iteration": 5},
        ),
        (
            f"{log}().report_scalar",
            {"title": "loss", "series": "eval", "value": 2.0, "iteration": 5},
        ),
        (f"{log}().report_single_value", {"name": "best", "value": 3}),
        (
            f"{log}().report_table",
            {"title": "table", "series": "train", "table_plot": [["a"], [1]], "iteration": 6},
        ),
        ("clearml.Task.init().close", {}),
    ]


def test_pictures_and_tables_are_made_by_the_package(monkeypatch):
    calls = stand_in(monkeypatch, "wandb")
    accelerator = Accelerator(log_with="wandb")
    accelerator.init_trackers("p")
    tracker = accelerator.get_tracker("wandb")
    calls.clear()
    tracker.log_images({"pictures": ["one", "two"]}, step=1)
    tracker.log_table("table", columns=["a"], data=[[1]], step=2)
    image, table = Package(calls, "wandb.Image()"), Package(calls, "wandb.Table()")
    assert [call for call in calls if call[0] == "wandb.init().log"] == [
        ("wandb.init().log", {"pictures": [image, image]}, {"step": 1}),
        ("wandb.init().log", {"table": table}, {"step": 2}),
    ]
    accelerator.end_training()


def test_a_package_that_cannot_be_imported_is_named_when_the_run_begins(tmp_path, monkeypatch):
    for module in ("torch.utils.tensorboard", "tensorboardX"):
        monkeypatch.setitem(sys.modules, module, None)
    tracker = TensorBoardTracker("p", tmp_path)
    with pytest.raises(ImportError, match="'tensorboard' needs the module tensorboardX"):
        tracker.start()
