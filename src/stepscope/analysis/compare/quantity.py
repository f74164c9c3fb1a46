"""The kinds of compared quantities: which direction is better, and how much equal runs differ by nature."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.core.vocabulary import canonical, unit_of

PHASE = "phase/"
STEP = "step_seconds"
MEAN_STEP = "step_seconds/mean"
"""The plain mean of the step times, rare long steps included; `step_seconds` is the typical step."""

TOTAL = "total_seconds"
"""The time from a run's first step to its last; for finished runs."""


@dataclass(frozen=True)
class QuantityKind:
    """A kind of quantity."""

    name: str
    lower_is_better: bool | None
    """None if unknown."""
    better: str
    worse: str
    """The verdicts."""
    noise: float
    """Relative standard deviation of the values of equal runs, if nothing better is known."""
    run_over_steps: float
    """Ratio of the difference between equal runs to the error estimated from their steps."""
    freedom: float = 4.0
    """Degrees of freedom of these two: as evidence they are worth this many more runs."""
    varies: bool = False
    """Whether the noise depends on the program, so that repeats with a larger spread override it."""


TIME = QuantityKind("time", True, "faster", "slower", 0.0015, 2.5)  # noqa: FBT003 - a table
RATE = QuantityKind("rate", False, "faster", "slower", 0.0015, 2.5)  # noqa: FBT003
"""Six programs of modded-nanogpt-runs, 34 runs on 8 H100, deviate by 0.03 to 0.2 %, which is 2 to 3 times what their
steps predict; torch loops on two busy cores by 2.0 to 2.8 times."""
MEMORY = QuantityKind("memory", True, "better", "worse", 0.0075, 1.0)  # noqa: FBT003
"""In the same runs the peak of equal programs deviates by 0.05 to 1.25 %, in the allocator's steps."""
LOSS = QuantityKind("loss", True, "better", "worse", 0.002, 1.5, 2.0, varies=True)  # noqa: FBT003
SCORE = QuantityKind("score", False, "better", "worse", 0.004, 1.5, 2.0, varies=True)  # noqa: FBT003
"""The effect of another seed on a loss depends on the program: the last evaluation loss of the same runs deviates by
0.02 to 0.05 %, that of MLPerf's llama31_8b by 0.15 %, that of a small model by several percent."""
OTHER = QuantityKind("other", None, "lower", "higher", 0.002, 2.5, 2.0, varies=True)

_LOSS = re.compile(r"(^|[/_.-])(loss|perplexity|ppl|error|wer|cer|mse|mae|rmse|nll|kl)([/_.-]|$)", re.IGNORECASE)
_SCORE = re.compile(
    r"(^|[/_.-])(accuracy|acc|reward|score|f1|auc|bleu|rouge|precision|recall|mfu|mfu_ratio)([/_.-]|$)", re.IGNORECASE
)


def kind_of(name: str) -> QuantityKind:
    """Return the kind of a quantity by its name and unit."""
    unit = unit_in(name)
    if unit.endswith("/second"):
        return RATE
    if unit in {"seconds", "milliseconds"}:
        return TIME
    if unit in {"bytes", "MiB", "GiB"}:
        return MEMORY
    return LOSS if is_loss(name) else SCORE if is_score(name) else OTHER


def unit_in(name: str) -> str:
    """Return the unit of a quantity."""
    return "seconds" if name == MEAN_STEP else unit_of(name)


def is_loss(name: str) -> bool:
    """Return whether lower values of a metric are better."""
    return canonical(name) in {"loss", "perplexity"} or _LOSS.search(name) is not None


def is_score(name: str) -> bool:
    """Return whether higher values of a metric are better."""
    return canonical(name) == "accuracy" or _SCORE.search(name) is not None


_SPEC = re.compile(r"(?P<name>[^\s@]+)(?:@(?P<at>\d{1,15}(?:\.\d{1,9})?|end)(?P<unit>s|%)?)?", re.ASCII)


@dataclass(frozen=True)
class Spec:
    """A requested quantity: a metric, or one at a step, time or share (`loss@1000`, `@60s`, `@50%`)."""

    name: str
    step: int | None = None
    seconds: float | None = None
    share: float | None = None
    """Share of each run's length; 1 is its end."""

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a quantity. Raises ValueError if it is invalid."""
        match = _SPEC.fullmatch(text.strip())
        if match is None or (match["at"] == "end" and match["unit"]):
            raise ValueError("not a metric, or one at a step, time or share, as in loss@1000, loss@60s or loss@50%")
        name, at = canonical(match["name"]), match["at"]
        if at is None:
            return cls(name)
        if at == "end":
            return cls(name, share=1.0)
        if match["unit"] == "%":
            if not 0 < float(at) <= 100:
                raise ValueError("a share is above 0 and at most 100 %, as in loss@50%")
            return cls(name, share=float(at) / 100)
        if match["unit"]:
            return cls(name, seconds=float(at))
        if not at.isdecimal():
            raise ValueError("a step is a whole number; a time ends in s, as in loss@2.5s")
        return cls(name, step=int(at))

    @property
    def text(self) -> str:
        """The quantity as people write it."""
        if self.step is not None:
            return f"{self.name}@{self.step}"
        if self.share is not None:
            return f"{self.name}@end" if self.share >= 1 else f"{self.name}@{self.share * 100:.6g}%"
        if self.seconds is None:
            return self.name
        return f"{self.name}@{f'{self.seconds:.6f}'.rstrip('0').rstrip('.')}s"
