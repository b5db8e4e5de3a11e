"""Names: the files of a checkpoint. They are Accelerate's, so that folders can be exchanged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CUSTOM_NAME",
    "GRADIENTS_NAME",
    "INDEX_NAME",
    "LOADER_STATE_NAME",
    "MODEL_NAME",
    "OPTIMIZER_NAME",
    "RNG_STATE_NAME",
    "SAFE_MODEL_NAME",
    "SAFE_WEIGHTS_INDEX_NAME",
    "SAFE_WEIGHTS_NAME",
    "SAFE_WEIGHTS_PATTERN_NAME",
    "SAMPLER_NAME",
    "SCALER_NAME",
    "SCHEDULER_NAME",
    "WEIGHTS_INDEX_NAME",
    "WEIGHTS_NAME",
    "WEIGHTS_PATTERN_NAME",
    "belongs_to_a_state",
    "numbered",
    "stale_names",
    "weights_names",
]

MODEL_NAME = "pytorch_model"
SAFE_MODEL_NAME = "model"
OPTIMIZER_NAME = "optimizer"
SCHEDULER_NAME = "scheduler"
SAMPLER_NAME = "sampler"
SCALER_NAME = "scaler.pt"
RNG_STATE_NAME = "random_states"
LOADER_STATE_NAME = "dl_state_dict"
CUSTOM_NAME = "custom_checkpoint"

WEIGHTS_NAME = f"{MODEL_NAME}.bin"
WEIGHTS_PATTERN_NAME = f"{MODEL_NAME}{{suffix}}.bin"
WEIGHTS_INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
SAFE_WEIGHTS_NAME = f"{SAFE_MODEL_NAME}.safetensors"
SAFE_WEIGHTS_PATTERN_NAME = f"{SAFE_MODEL_NAME}{{suffix}}.safetensors"
SAFE_WEIGHTS_INDEX_NAME = f"{SAFE_WEIGHTS_NAME}.index.json"

# Ours alone; Accelerate does not look at them.
INDEX_NAME = "nb_accelerate.json"
"""What the checkpoint holds, and at which point of the training it was made."""
GRADIENTS_NAME = "gradients"
"""Gradients of a window of accumulation that is not complete; one file for each rank."""

_WEIGHTS = re.compile(rf"{SAFE_MODEL_NAME}(_\d+)?\.safetensors|{MODEL_NAME}(_\d+)?\.bin")
_OTHERS = re.compile(
    rf"({OPTIMIZER_NAME}|{SCHEDULER_NAME}|{SAMPLER_NAME}|{LOADER_STATE_NAME})(_\d+)?\.bin|"
    rf"({RNG_STATE_NAME}|{CUSTOM_NAME})_\d+\.pkl|{GRADIENTS_NAME}_\d+\.bin|"
    rf"{re.escape(SCALER_NAME)}|{re.escape(INDEX_NAME)}"
)


def numbered(name: str, number: int) -> str:
    """The file of one of its kind: "optimizer.bin", "optimizer_1.bin", "optimizer_2.bin"."""
    stem, dot, suffix = name.partition(".")
    return f"{stem}_{number}{dot}{suffix}" if number else name


def weights_names(number: int) -> tuple[str, str]:
    """The files that the weights of a model may be in, in the order in which they are sought."""
    return numbered(SAFE_WEIGHTS_NAME, number), numbered(WEIGHTS_NAME, number)


def belongs_to_a_state(name: str) -> bool:
    """Whether `save_state` writes files of that name, in this version or in Accelerate."""
    return any(pattern.fullmatch(name) for pattern in (_WEIGHTS, _OTHERS))


def stale_names(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """The old files of a state that a new state in their place does not have.

    Weights stay where the new state has none: hooks may keep them in files of their own.
    """
    new = set(new)
    has_weights = any(_WEIGHTS.fullmatch(name) for name in new)
    patterns = (_WEIGHTS, _OTHERS) if has_weights else (_OTHERS,)
    return sorted(
        name for name in set(old) - new if any(pattern.fullmatch(name) for pattern in patterns)
    )
