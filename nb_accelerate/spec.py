"""LaunchSpec: what the user asks for. Plain frozen data, whatever the machine.

One field has four faces: an argument, a control of the panel, a key of the config file and a
flag of the command line. All four are made from `SETTINGS`, so that nothing is written twice.
"""

from __future__ import annotations

import math
import operator
import os
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_type_hints

from .errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

__all__ = [
    "SETTINGS",
    "Hardware",
    "LaunchSpec",
    "Precision",
    "Setting",
    "StartMethod",
    "checked",
]

Hardware: TypeAlias = Literal["auto", "cpu", "cuda", "mps", "xpu", "tpu"]
Precision: TypeAlias = Literal["no", "fp16", "bf16", "fp8"]
StartMethod: TypeAlias = Literal["auto", "template", "fork", "spawn", "inline"]


def _says(
    sentence: str, *, upstream: str = "", least: float | None = None, above: float | None = None
) -> dict[str, object]:
    """A field's metadata: its help, Accelerate's config key for it, and the bounds of its value."""
    return {"help": sentence, "upstream": upstream, "least": least, "above": above}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A launch as it was asked for; "auto" and None leave the choice to the plan.

    The constructor takes what it is given; `from_settings` and `checked` refuse what cannot be.
    """

    hardware: Hardware = field(
        default="auto", metadata=_says("Where to train; 'auto' takes the best that is there.")
    )
    num_processes: int | None = field(
        default=None,
        metadata=_says("How many workers; one per device when not given, else one.", least=1),
    )
    mixed_precision: Precision = field(
        default="no", metadata=_says("Number format of the forward pass; 'no' is plain float32.")
    )
    gradient_accumulation_steps: int = field(
        default=1, metadata=_says("Batches whose gradients add up to one update.", least=1)
    )
    num_nodes: int = field(
        default=1, metadata=_says("How many machines.", upstream="num_machines", least=1)
    )
    node_rank: int = field(
        default=0,
        metadata=_says(
            "This machine's place among them, from 0.", upstream="machine_rank", least=0
        ),
    )
    master_addr: str = field(
        default="127.0.0.1",
        metadata=_says("Address of the machine of node rank 0.", upstream="main_process_ip"),
    )
    use_port: str = field(
        default="",
        metadata=_says(
            "Port at which the workers meet; a free one when empty.", upstream="main_process_port"
        ),
    )
    rdzv_backend: str = field(
        default="static", metadata=_says("How several machines find each other.")
    )
    rdzv_endpoint: str = field(
        default="", metadata=_says("host:port at which several machines find each other.")
    )
    rdzv_id: str = field(
        default="none", metadata=_says("Name that the machines of one launch share.")
    )
    max_restarts: int = field(
        default=0,
        metadata=_says("How often a failed launch is tried again; only 0 so far.", least=0),
    )
    start_method: StartMethod = field(
        default="auto",
        metadata=_says("How workers start; 'inline' runs in the kernel itself, for a debugger."),
    )
    threads_per_rank: int | None = field(
        default=None,
        metadata=_says(
            "Threads per worker; the CPUs are shared out when not given.",
            upstream="num_cpu_threads_per_process",
            least=1,
        ),
    )
    timeout_seconds: float | None = field(
        default=None, metadata=_says("Stop the run after this many seconds.", above=0)
    )
    grace_seconds: float = field(
        default=4.0, metadata=_says("Time to save its work that a stopped worker has.", least=0)
    )
    hang_notice_seconds: float = field(
        default=30.0,
        metadata=_says("Tell who waits where after this long in a collective.", above=0),
    )
    run_root: str | None = field(
        default=None,
        metadata=_says("Folder that run folders go to; the user's own when not given."),
    )

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Self:
        """Build from a config file, a form or flags; Accelerate's config keys are understood.

        Raises:
            SpecError: a name that no setting has, a setting given twice, or a value that cannot be.
        """
        values: dict[str, Any] = {}
        for name, value in settings.items():
            setting = _setting_named(name)
            if setting.name in values:
                raise SpecError(
                    f"{' and '.join(setting.names)} are two names of one setting, and both are"
                    " given. Leave one of them out."
                )
            values[setting.name] = setting.read(value)
        return cls(**values)

    def to_settings(self) -> dict[str, object]:
        """Every setting by name, as JSON can hold it; `from_settings` makes an equal spec of it."""
        return asdict(self)

    def replace(self, **changes: object) -> Self:
        """A copy with these settings changed, checked like `from_settings`."""
        renamed = {_setting_named(name).name: value for name, value in changes.items()}
        return self.from_settings(self.to_settings() | renamed)


def checked(spec: LaunchSpec) -> LaunchSpec:
    """`spec` with each value in its one spelling ("FP16" is "fp16", a port is text).

    Raises:
        SpecError: a value that cannot be, whatever the machine.
    """
    return spec.from_settings(spec.to_settings())


# ---------------------------------------------------------------- one setting
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a flag, a control, a config key and a line of the manual need to know of one field."""

    name: str
    help: str
    kind: type[str] | type[int] | type[float]
    optional: bool
    """None is a value of it: "not given"."""
    default: object
    choices: tuple[str, ...] = ()
    upstream: str = ""
    """Accelerate's key in its config file, where it differs."""
    least: float | None = None
    above: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names it goes by, its own first."""
        return (self.name, self.upstream) if self.upstream else (self.name,)

    def read(self, value: object) -> object:
        """The value in its one spelling.

        Raises:
            SpecError: it cannot be a value of this setting.
        """
        if value is None and self.optional:
            return None
        read = (_READERS.get(self.name) or _READERS[self.kind])(self, value)
        self._check_choice(read)
        self._check_bounds(read)
        return read

    def _check_choice(self, value: object) -> None:
        if self.choices and value not in self.choices:
            raise SpecError(
                f"{self.name}={value!r} is not one of {_listed(self.choices)}."
                f"{_meant(str(value), self.choices)}"
            )

    def _check_bounds(self, value: object) -> None:
        if not isinstance(value, int | float):
            return
        if self.least is not None and value < self.least:
            raise SpecError(f"{self.name}={value!r} is too low: it must be at least {self.least}.")
        if self.above is not None and value <= self.above:
            raise SpecError(f"{self.name}={value!r} is too low: it must be above {self.above}.")


def _read_text(setting: Setting, value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # Accelerate's own enumerations hold their text in `value`.
    text = getattr(value, "value", value)
    if setting.choices:
        return text.lower() if isinstance(text, str) else text
    if isinstance(text, str):
        return text
    raise SpecError(f"{setting.name}={value!r}: give a text, not {_a(value)}.")


def _read_port(_setting: Setting, value: object) -> str:
    """A port as text; 0 is how upstream asks for a free one."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if text in ("", "0"):
        return ""
    if isinstance(text, str) and text.isdecimal() and 0 < int(text) < 2**16:
        return str(int(text))
    raise SpecError(
        f"use_port={value!r} is not a port: give a number from 1 to 65535, or '' for a free one."
    )


def _read_whole(setting: Setting, value: object) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # TypeError is the answer
        except TypeError:
            pass
    raise SpecError(f"{setting.name}={value!r}: give a whole number, not {_a(value)}.")


def _read_number(setting: Setting, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpecError(f"{setting.name}={value!r}: give a number, not {_a(value)}.")
    if not math.isfinite(value):
        cure = ", or leave it out for no limit" if setting.optional else ""
        raise SpecError(f"{setting.name}={value!r}: give a finite number{cure}.")
    return float(value)


_READERS: dict[str | type, Callable[[Setting, object], object]] = {
    "use_port": _read_port,
    str: _read_text,
    int: _read_whole,
    float: _read_number,
}


# ---------------------------------------------------------------- all of them
def _settings() -> tuple[Setting, ...]:
    hints = get_type_hints(LaunchSpec)
    return tuple(
        Setting(name=f.name, default=f.default, **_typed(hints[f.name]), **f.metadata)
        for f in fields(LaunchSpec)
    )


def _typed(hint: object) -> dict[str, Any]:
    """kind, optional and choices, from an annotation such as `int | None` or a Literal."""
    parts = get_args(hint)
    if parts and all(isinstance(part, str) for part in parts):
        return {"kind": str, "optional": False, "choices": parts}
    kinds = [part for part in parts or (hint,) if part is not NoneType]
    return {"kind": kinds[0], "optional": NoneType in parts}


SETTINGS: tuple[Setting, ...] = _settings()
_BY_NAME = {name: setting for setting in SETTINGS for name in setting.names}


def _setting_named(name: str) -> Setting:
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise SpecError(
        f"{name!r} is not a setting of a launch.{_meant(str(name), _BY_NAME)}"
        f" Settings: {', '.join(setting.name for setting in SETTINGS)}."
    )


# ---------------------------------------------------------------- sentences
_OTHER_WORDS = {
    "fp32": "no", "float32": "no", "32": "no", "none": "no", "full": "no",
    "float16": "fp16", "half": "fp16", "16": "fp16", "bfloat16": "bf16", "float8": "fp8",
    "gpu": "cuda", "gpus": "cuda", "nvidia": "cuda", "rocm": "cuda", "metal": "mps", "xla": "tpu",
    "intel": "xpu", "forkserver": "template", "process": "template", "thread": "inline",
}  # fmt: skip
"""What other libraries call our choices."""


def _meant(word: str, known: Iterable[str]) -> str:
    """A question that names the known word which `word` is close to, or nothing."""
    import difflib  # only ever needed for an error

    candidates = tuple(known)
    other = _OTHER_WORDS.get(word.lower())
    close = [other] if other in candidates else difflib.get_close_matches(word, candidates, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _listed(words: Iterable[str]) -> str:
    return ", ".join(repr(word) for word in words)


def _a(value: object) -> str:
    """What kind of thing it is, such as "a str"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
