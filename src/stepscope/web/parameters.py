"""Parameters of every route with their limits; the server checks requests against them and publishes them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct, field

from stepscope.web.failures import InvalidRequestError

NAMES, RUNS, POINTS, ROWS = 64, 20, 4000, 2_000_000
"""Limits of one request: metrics, runs, buckets per curve, and buckets in total."""
MAX_PARAMETERS = 400
"""Parameters in one address."""
_P = TypeVar("_P", bound="Parameters")

Run = Annotated[str, Meta(min_length=1, max_length=600, description="key of a run, as /api/runs lists it")]
Name = Annotated[str, Meta(min_length=1, max_length=1000, description="name of a metric")]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=NAMES)]
Ranks = Annotated[list[Int32], Meta(max_length=1024)]
Position = Annotated[float, Meta(ge=-9e15, le=9e15)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
Points = Annotated[int, Meta(ge=10, le=POINTS, description="buckets per curve")]


class Parameters(Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a route."""


class NoParameters(Parameters, kw_only=True):
    """No parameters."""


class RunListParameters(Parameters, kw_only=True):
    """Parameters of the list of runs."""

    since: Annotated[int, Meta(ge=0, le=2**53, description="version of the last response")] | None = None


class RunParameters(Parameters, kw_only=True):
    """The run that a route is about."""

    run: Run


class LiveParameters(RunParameters, kw_only=True):
    """Parameters of the live poll."""

    since: Annotated[str, Meta(max_length=40, description="cursor of the last response")] | None = None


class CurveParameters(Parameters, kw_only=True):
    """Metrics and a range of steps or times."""

    name: Names
    points: Points = 800
    rank: Ranks | None = None
    attempt: Ranks | None = None
    first: Position | None = field(name="from", default=None)
    last: Position | None = field(name="to", default=None)
    axis: Literal["step", "time"] = "step"

    def range_on(self, axis: str, scale: float = 1.0) -> tuple[int, int] | None:
        """Return the range in whole units of 1/`scale`; None if it is not limited on this axis."""
        if self.axis != axis or (self.first is None and self.last is None):
            return None
        low = -(2**62) if self.first is None else math.floor(self.first * scale)
        high = 2**62 if self.last is None else math.ceil(self.last * scale)
        return low, high


class SeriesParameters(CurveParameters, kw_only=True):
    """Parameters of the curves."""

    run: Annotated[list[Run], Meta(min_length=1, max_length=RUNS)]
    fold: Literal["ranks", "worst"] | None = None
    """ranks: one curve of all ranks; worst: also that of the rank that is farthest from their mean."""


class RecipeParameters(CurveParameters, kw_only=True):
    """Parameters of the code that reads the same numbers."""

    run: Run


class RankParameters(RunParameters, kw_only=True):
    """Parameters of the ranks: the steps that figures are from, both inclusive; the newest unless both are given."""

    first: Step | None = field(name="from", default=None)
    last: Step | None = field(name="to", default=None)

    @property
    def steps(self) -> tuple[int, int] | None:
        """The range of steps, or None."""
        return None if self.first is None or self.last is None else (self.first, self.last)


class RankMapParameters(RankParameters, kw_only=True):
    """Parameters of a map of ranks; `what` is "step" for how late each rank is, or a metric."""

    what: Name = "step"
    buckets: Annotated[int, Meta(ge=1, le=1000)] = 160


class RankStepParameters(RunParameters, kw_only=True):
    """Parameters of a step, or of the mean of several steps, of one rank; of the latest rank if none is given."""

    first: Step = field(name="from")
    last: Step = field(name="to")
    rank: Int32 | None = None


class EventParameters(RunParameters, kw_only=True):
    """Parameters of the events."""

    kind: Annotated[str, Meta(max_length=100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=5000)] = 500


class ConsoleParameters(RunParameters, kw_only=True):
    """Parameters of the consoles."""

    rank: Ranks | None = None
    attempt: Int32 | None = None
    since: Annotated[float, Meta(ge=0, le=2e11, description="first time, Unix seconds")] | None = None
    until: Annotated[float, Meta(ge=0, le=2e11, description="last time, Unix seconds")] | None = None
    step: Annotated[int, Meta(ge=-(2**53), le=2**53, description="a step, whose time is wanted")] | None = None
    after: Annotated[str, Meta(max_length=200_000, description="cursor of an earlier response")] | None = None
    last: Annotated[int, Meta(ge=1, le=5000, description="only the newest lines")] | None = None
    pattern: Annotated[str, Meta(max_length=200, description="text, or /a regular expression/")] | None = None
    level: Literal["err", "error"] | None = None
    limit: Annotated[int, Meta(ge=1, le=5000)] = 1000


class HistogramParameters(RunParameters, kw_only=True):
    """Parameters of the histograms."""

    name: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class CompareParameters(Parameters, kw_only=True):
    """Parameters of the comparison; the first run is the base."""

    run: Annotated[list[Run], Meta(min_length=2, max_length=RUNS)]


class ExportParameters(RunParameters, kw_only=True):
    """Parameters of a download."""

    format: Literal["csv", "jsonl", "parquet", "json", "html"]
    name: Annotated[list[Name], Meta(max_length=NAMES)] | None = None


class AlertAction(Parameters, kw_only=True):
    """A change to the alerts of a run."""

    run: Run
    action: Literal["ack", "silence", "unsilence", "test"]
    alert: Annotated[str, Meta(max_length=200)] | None = None
    rule: Annotated[str, Meta(max_length=200)] | None = None
    seconds: Annotated[float, Meta(ge=1, le=30 * 86_400)] | None = None


def parse(query: bytes, kind: type[_P]) -> _P:
    """Return the parameters in a query string. Raises InvalidRequestError."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict")
    except ValueError:
        raise InvalidRequestError("its parameters cannot be decoded") from None
    hints, given = get_type_hints(kind), dict[str, Any]()
    repeatable = {one.encode_name for one in msgspec.structs.fields(kind) if "list[" in str(hints[one.name])}
    for key, value in pairs:
        if key in repeatable:
            given.setdefault(key, []).append(value)
        elif key in given:
            raise InvalidRequestError(f"{key[:40]!r} is given twice")
        else:
            given[key] = value
    try:
        return checked(msgspec.convert(given, kind, strict=False))
    except msgspec.ValidationError as error:
        raise InvalidRequestError(str(error)) from None


def checked(parameters: _P) -> _P:
    """Check what types cannot express: finite ranges, not too many buckets. Raises InvalidRequestError."""
    if isinstance(parameters, CurveParameters):
        ends = (parameters.first or 0.0, parameters.last or 0.0)
        if not all(map(math.isfinite, ends)):
            raise InvalidRequestError("the ends of a range must be finite numbers")
    if isinstance(parameters, SeriesParameters):
        buckets = len(parameters.run) * len(parameters.name) * parameters.points
        if buckets > ROWS:
            raise InvalidRequestError(f"more than {ROWS} buckets; ask for fewer runs, names or points")
    return parameters
