"""MLflow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nb_accelerate.training.joining import environment, is_yes
from nb_accelerate.training.logs import get_logger

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    import os

    from nb_accelerate.training.nested import Anything

__all__ = ["MLflowTracker"]

logger = get_logger(__name__)


class MLflowTracker(GeneralTracker):
    """Logs to a run of an MLflow experiment, which is made if there is none of that name.

    Where MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS (JSON) or MLFLOW_NESTED_RUN are set,
    they overrule the argument of that name.

    Args:
        experiment_name: the experiment; None is MLflow's default one.
        logging_dir: where a new experiment keeps artifacts.
        run_id: a run to go on with.
        tags: for the run and a new experiment; a dict, or JSON of one.
        nested_run: begin within the run that is active.
        run_name: what a new run is called.
        description: what the run is about.
    """

    name = "mlflow"
    requires_logging_directory = False

    def __init__(  # noqa: PLR0913  # upstream's
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool = False,  # noqa: FBT001, FBT002
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        said = environment()
        tags = said.get("MLFLOW_TAGS", tags)
        nested = said.get("MLFLOW_NESTED_RUN")
        self.experiment_name = said.get("MLFLOW_EXPERIMENT_NAME", experiment_name)
        self.logging_dir = None if logging_dir is None else str(logging_dir)
        self.run_id = said.get("MLFLOW_RUN_ID", run_id)
        self.tags = json.loads(tags) if isinstance(tags, str) else tags
        self.nested_run = nested_run if nested is None else is_yes(nested)
        self.run_name = run_name
        self.description = description
        self.active_run: Any = None

    @on_main_process
    def start(self) -> None:
        """Begin the run, or go on with it."""
        mlflow = guest("mlflow", self.name)
        self.active_run = mlflow.start_run(
            run_id=self.run_id,
            experiment_id=self._experiment_id(mlflow),
            run_name=self.run_name,
            nested=self.nested_run,
            tags=self.tags,
            description=self.description,
        )

    def _experiment_id(self, mlflow: Any) -> str | None:  # noqa: ANN401  # another package's
        if self.experiment_name is None:
            return None
        found = mlflow.get_experiment_by_name(self.experiment_name)
        if found is not None:
            return str(found.experiment_id)
        made = mlflow.create_experiment(
            self.experiment_name, artifact_location=self.logging_dir, tags=self.tags
        )
        return str(made)

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The MLflow run."""
        return self.active_run

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters, but for those whose text is longer than MLflow takes."""
        mlflow = guest("mlflow", self.name)
        limits = guest("mlflow.utils.validation", self.name)
        kept = []
        for name, value in values.items():
            if len(str(value)) <= limits.MAX_PARAM_VAL_LENGTH:
                kept.append((name, value))
            else:
                logger.warning_once(
                    "MLflow got no parameter %r: its text has %d characters, and %d may be.",
                    name,
                    len(str(value)),
                    limits.MAX_PARAM_VAL_LENGTH,
                )
        size = limits.MAX_PARAMS_TAGS_PER_BATCH
        for start in range(0, len(kept), size):
            mlflow.log_params(dict(kept[start : start + size]))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep numbers as metrics."""
        metrics = {}
        for name, value in as_numbers(values).items():
            if isinstance(value, int | float):
                metrics[name] = value
            else:
                logger.warning_once(
                    "MLflow got no %r: a %s is no number.", name, type(value).__name__
                )
        guest("mlflow", self.name).log_metrics(metrics, step=step, **kwargs)

    @on_main_process
    def log_figure(self, figure: Anything, artifact_file: str, **save_kwargs: Anything) -> None:
        """Keep a figure of matplotlib or plotly as a file of the run."""
        mlflow = guest("mlflow", self.name)
        mlflow.log_figure(figure=figure, artifact_file=artifact_file, **save_kwargs)

    @on_main_process
    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Keep copies of all files in a folder."""
        guest("mlflow", self.name).log_artifacts(local_dir=local_dir, artifact_path=artifact_path)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Keep a copy of a file."""
        guest("mlflow", self.name).log_artifact(local_path=local_path, artifact_path=artifact_path)

    @on_main_process
    def finish(self) -> None:
        """End the run."""
        guest("mlflow", self.name).end_run()
