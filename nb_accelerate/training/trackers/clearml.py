"""ClearML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nb_accelerate.errors import SpecError
from nb_accelerate.training.joining import environment
from nb_accelerate.training.logs import get_logger

from .general import GeneralTracker, guest, on_main_process
from .values import as_numbers

if TYPE_CHECKING:
    from nb_accelerate.training.nested import Anything

__all__ = ["ClearMLTracker"]

logger = get_logger(__name__)

_SERIES = ("eval", "test", "train")


class ClearMLTracker(GeneralTracker):
    """Logs to a ClearML task: the current one, where there is one, which is then left open.

    Args:
        run_name: project and name of a new task, where CLEARML_PROJECT and CLEARML_TASK do not
            say another.
        kwargs: for `Task.init`; they overrule both.
    """

    name = "clearml"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, **kwargs: Anything) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.task: Any = None
        self._is_ours = False

    @on_main_process
    def start(self) -> None:
        """Join the current task, or begin one."""
        tasks = guest("clearml", self.name).Task
        self.task = tasks.current_task()
        if self.task:
            return
        named = {
            "project_name": environment().get("CLEARML_PROJECT", self.run_name),
            "task_name": environment().get("CLEARML_TASK", self.run_name),
        }
        self.task = tasks.init(**(named | self.init_kwargs))
        self._is_ours = True

    @property
    def tracker(self) -> Any:  # noqa: ANN401  # another package's
        """The ClearML task."""
        return self.task

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep hyperparameters as the task's configuration."""
        self.task.connect_configuration(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Anything) -> None:
        """Keep numbers: as scalars of a step, or as single values where there is none.

        A name that begins with eval_, test_ or train_ goes to that series of the rest's chart.
        """
        report = self.task.get_logger()
        for name, value in as_numbers(values).items():
            if not isinstance(value, int | float):
                logger.warning_once(
                    "ClearML got no %r: a %s is no number.", name, type(value).__name__
                )
            elif step is None:
                report.report_single_value(name=name, value=value, **kwargs)
            else:
                report.report_scalar(**_place(name), value=value, iteration=step, **kwargs)

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, **kwargs: Anything
    ) -> None:
        """Keep images (arrays, PIL's), one of each name."""
        report = self.task.get_logger()
        for name, image in values.items():
            report.report_image(**_place(name), iteration=step, image=image, **kwargs)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Anything = None,
        step: int | None = None,
        **kwargs: Anything,
    ) -> None:
        """Keep a table: a dataframe, or rows, the first of which names the columns if none do.

        Raises:
            SpecError: there is neither.
        """
        if dataframe is None and data is None:
            raise SpecError(f"log_table({table_name!r}) was given neither data nor a dataframe.")
        rows = [columns, *(data or [])] if columns else data
        table = rows if dataframe is None else dataframe
        report = self.task.get_logger()
        report.report_table(**_place(table_name), table_plot=table, iteration=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Close the task, unless it was there before."""
        if self.task and self._is_ours:
            self.task.close()


def _place(name: str) -> dict[str, str]:
    """The chart and the series of a value, by its name."""
    series, _, title = name.partition("_")
    if series in _SERIES and title:
        return {"title": title, "series": series}
    return {"title": name, "series": "train"}
