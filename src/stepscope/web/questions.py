"""What may be asked: the parameters of each route with their bounds, once for the server and its description."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct, field

NAMES, RUNS, POINTS, ROWS = 64, 20, 4000, 2_000_000
"""Limits of one request: metrics, runs, buckets per curve, and buckets in total."""
PARAMETERS = 400
"""Parameters of one address."""
_T = TypeVar("_T", bound="Question")

Run = Annotated[str, Meta(min_length=1, max_length=600, description="key of a run, as /api/runs lists it")]
Name = Annotated[str, Meta(min_length=1, max_length=1000, description="name of a metric")]
Whole = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=NAMES)]
Ranks = Annotated[list[Whole], Meta(max_length=1024)]
Place = Annotated[float, Meta(ge=-9e15, le=9e15)]
Points = Annotated[int, Meta(ge=10, le=POINTS, description="buckets of each curve")]


class WrongQuestionError(Exception):
    """The parameters are not what the route takes."""


class Question(Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a route."""


class Nothing(Question, kw_only=True):
    """No parameters."""


class Since(Question, kw_only=True):
    """Of the list of runs."""

    since: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class OfRun(Question, kw_only=True):
    """Of whatever is told of one run."""

    run: Run


class Live(OfRun, kw_only=True):
    """Of the live poll."""

    since: Annotated[str, Meta(max_length=40, description="cursor of the last answer")] | None = None


class Range(Question, kw_only=True):
    """A part of some curves."""

    name: Names
    points: Points = 800
    rank: Ranks | None = None
    attempt: Ranks | None = None
    first: Place | None = field(name="from", default=None)
    last: Place | None = field(name="to", default=None)
    axis: Literal["step", "time"] = "step"

    def ends(self, axis: str, scale: float = 1.0) -> tuple[int, int] | None:
        """Return the range on an axis in whole units, `scale` of them in one; None if it is not bounded there."""
        if self.axis != axis or (self.first is None and self.last is None):
            return None
        low = -(2**62) if self.first is None else math.floor(self.first * scale)
        high = 2**62 if self.last is None else math.ceil(self.last * scale)
        return low, high


class Series(Range, kw_only=True):
    """Of the curves."""

    run: Annotated[list[Run], Meta(min_length=1, max_length=RUNS)]
    fold: Literal["ranks"] | None = None


class Recipe(Range, kw_only=True):
    """Of the texts that give the same numbers."""

    run: Run


class Events(OfRun, kw_only=True):
    """Of the events."""

    kind: Annotated[str, Meta(max_length=100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=5000)] = 500


class Histograms(OfRun, kw_only=True):
    """Of the histograms."""

    name: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class Compare(Question, kw_only=True):
    """Of the comparison."""

    run: Annotated[list[Run], Meta(min_length=2, max_length=RUNS)]


class Export(OfRun, kw_only=True):
    """Of a download."""

    format: Literal["csv", "jsonl", "parquet", "json", "html"]
    name: Annotated[list[Name], Meta(max_length=NAMES)] | None = None


class AlertAction(Question, kw_only=True):
    """What is asked of the alerts of a run."""

    run: Run
    action: Literal["ack", "silence", "unsilence", "test"]
    alert: Annotated[str, Meta(max_length=200)] | None = None
    rule: Annotated[str, Meta(max_length=200)] | None = None
    seconds: Annotated[float, Meta(ge=1, le=30 * 86_400)] | None = None


def parse(query: bytes, kind: type[_T]) -> _T:
    """Return the question that a query string asks.

    Raises:
        WrongQuestionError: it is none of this kind.
    """
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=PARAMETERS, errors="strict")
    except ValueError:
        raise WrongQuestionError("its parameters cannot be read") from None
    lists = _lists(kind)
    given: dict[str, Any] = {}
    for key, value in pairs:
        if key in lists:
            given.setdefault(key, []).append(value)
        elif key in given:
            raise WrongQuestionError(f"{key[:40]!r} is given twice")
        else:
            given[key] = value
    try:
        asked = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise WrongQuestionError(str(error)) from None
    return checked(asked)


def checked(asked: _T) -> _T:
    """Refuse what types cannot say: numbers that are none, and too much at once."""
    if isinstance(asked, Range) and not all(math.isfinite(end) for end in (asked.first or 0.0, asked.last or 0.0)):
        raise WrongQuestionError("a range has numbers for ends")
    if isinstance(asked, Series) and len(asked.run) * len(asked.name) * asked.points > ROWS:
        raise WrongQuestionError(f"more than {ROWS} buckets; ask for fewer runs, names or points")
    return asked


def _lists(kind: type[Question]) -> set[str]:
    """Return the parameters that may be given several times."""
    hints = get_type_hints(kind)
    renamed = {one.name: one.encode_name for one in msgspec.structs.fields(kind)}
    return {renamed[name] for name, hint in hints.items() if name in renamed and "list[" in str(hint)}
