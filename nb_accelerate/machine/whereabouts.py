"""Where a kernel runs: Colab, Kaggle, a terminal, ..., by the environment and loaded modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

__all__ = ["places"]


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    variables: tuple[str, ...] = ()
    """Any variable that starts so tells."""
    modules: tuple[str, ...] = ()
    unless: str = ""


_PLACES = (
    _Place("kaggle", ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_DATA_PROXY_URL")),
    # Kaggle's image is made from Colab's and has its module too.
    _Place("colab", ("COLAB_",), ("google.colab",), unless="kaggle"),
    _Place("sagemaker", ("SAGEMAKER_", "SM_HOSTS", "SM_CURRENT_HOST")),
    _Place("databricks", ("DATABRICKS_RUNTIME_VERSION",)),
    _Place("slurm", ("SLURM_JOB_ID",)),
    _Place("vscode", ("VSCODE_",)),
    _Place("jupyter", (), ("ipykernel.kernelapp",)),
)


def places(environ: Iterable[str], modules: Container[str] = ()) -> tuple[str, ...]:
    """The names of `_PLACES` that hold, or ("terminal",)."""
    names = tuple(environ)
    found: list[str] = []
    for place in _PLACES:
        told = any(name.startswith(place.variables) for name in names)
        if (told or any(m in modules for m in place.modules)) and place.unless not in found:
            found.append(place.name)
    return tuple(found) or ("terminal",)
