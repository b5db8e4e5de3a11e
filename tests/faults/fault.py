"""A fault, drawn at random from a seed: what happens to whom and when."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random

__all__ = ["KINDS", "Fault"]

# Of a rank's own doing, within the function; the others wait for it in a collective.
OWN_DOING = ("exception", "early return", "os._exit", "sys.exit", "segfault", "abort")
# Of others, from outside.
FROM_OUTSIDE = (
    "SIGKILL", "SIGSEGV", "SIGTERM", "SIGSTOP and interrupt", "SIGSTOP and timeout",
    "interrupt", "two interrupts", "timeout", "template killed", "loader killed",
    "kernel killed", "kernel restarted",
)  # fmt: skip
KINDS = OWN_DOING + FROM_OUTSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; `str` of it is its test's name."""

    seed: int
    number: int
    kind: str
    world_size: int
    victim: int
    moment: float
    """Seconds, from the function's (or, of interrupts and kernels, from the launch's) beginning."""
    gap: float
    """Seconds between two interrupts."""
    loaders: int
    """Loader workers of each rank."""
    stubborn: bool
    """The ranks ignore SIGINT and SIGTERM."""
    chatty: bool
    """They print all the time."""

    @classmethod
    def drawn(cls, seed: int, number: int) -> Fault:
        """The same one for the same numbers; every kind has its turn."""
        chance = Random(f"{seed}/{number}")
        order = Random(seed).sample(KINDS, len(KINDS))
        kind = order[number % len(order)]
        world_size = chance.choice([2, 3])
        return cls(
            seed=seed,
            number=number,
            kind=kind,
            world_size=world_size,
            victim=chance.randrange(world_size),
            moment=round(chance.choice([0.0, chance.uniform(0, 0.05), chance.uniform(0, 0.5)]), 3),
            gap=round(chance.uniform(0.02, 0.5), 3),
            loaders=1 if kind == "loader killed" else chance.choice([0, 0, 1]),
            stubborn=chance.random() < 0.25 and kind != "SIGTERM",
            chatty=chance.random() < 0.5,
        )

    @property
    def orders(self) -> dict[str, object]:
        """What the ranks are told."""
        return {**asdict(self), "own_doing": self.kind in OWN_DOING}

    def __str__(self) -> str:
        how = [f"{self.loaders} loaders"] * bool(self.loaders) + ["stubborn"] * self.stubborn
        with_ = f" with {', '.join(how)}" if how else ""
        return (
            f"{self.seed}/{self.number} {self.kind} of {self.victim} in {self.world_size}"
            f" at {self.moment}{with_}"
        )
