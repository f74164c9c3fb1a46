"""Write metrics as Prometheus and OpenMetrics read them: plain data in, bytes out.

The watcher serves these pages and stays small, so it does not load `prometheus_client` for them. Both forms are
written from one description: text format 0.0.4, which every Prometheus reads, and OpenMetrics 1.0, which newer ones
ask for.
"""

from __future__ import annotations

import re
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
"""Names of families and labels; colons are reserved for recording rules."""

_UNNAMED = re.compile(r"[^a-zA-Z0-9_]+")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Sample(NamedTuple):
    """One line of a page."""

    labels: str
    """What `label_set` returns; it is kept, for labels stay and values change."""
    value: float
    suffix: str = ""
    """Ending of the name in a histogram: `_bucket`, `_sum` or `_count`. The writer adds that of a counter."""


class MetricFamily(NamedTuple):
    """A metric with all its series."""

    name: str
    """Matches NAME; a counter's is without `_total`."""
    kind: str
    help: str
    samples: Sequence[Sample]


def label_set(labels: Mapping[str, str]) -> str:
    """Return labels as they stand behind a name, escaped; empty for none."""
    pairs = [f'{name}="{_encodable(value).translate(_ESCAPES)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def with_label(labels: str, name: str, value: str) -> str:
    """Return a label set with one more label at its end."""
    added = label_set({name: value})
    return f"{labels[:-1]},{added[1:]}" if labels else added


def valid_name(text: str) -> str:
    """Turn any text into the name of a metric or label; different texts may give the same name."""
    name = _UNNAMED.sub("_", text).strip("_") or "unnamed"
    return f"_{name}" if name[0].isdigit() else name


def number(value: float) -> str:
    """Return a value with as many digits as read back to the same 64 bits; NaN, +Inf and -Inf by these words."""
    text = repr(float(value))
    return text if text[-1].isdigit() else {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[text]


def histogram(labels: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> list[Sample]:
    """Return the samples of one histogram: `counts` has one more bucket than the ascending upper `bounds`."""
    seen = list(accumulate(counts))
    buckets = [
        Sample(with_label(labels, "le", number(bound)), count, "_bucket")
        for bound, count in zip((*bounds, inf), seen, strict=True)
    ]
    return [*buckets, Sample(labels, total, "_sum"), Sample(labels, seen[-1], "_count")]


def text(families: Iterable[MetricFamily]) -> bytes:
    """Return a page in text format 0.0.4; a family without samples is left out."""
    return "".join(_written(families, "_total", _HELP_ESCAPES)).encode()


def open_metrics(families: Iterable[MetricFamily]) -> bytes:
    """Return a page in OpenMetrics 1.0; a family without samples is left out."""
    return "".join([*_written(families, "", _ESCAPES), "# EOF\n"]).encode()


def _written(families: Iterable[MetricFamily], suffix: str, escapes: Mapping[int, str]) -> Iterator[str]:
    """Yield the lines of all families; `suffix` ends the name of a counter in its two head lines."""
    for family in families:
        if family.samples:
            is_counter = family.kind == COUNTER
            name = f"{family.name}{suffix if is_counter else ''}"
            yield f"# HELP {name} {_encodable(family.help).translate(escapes)}\n"
            yield f"# TYPE {name} {family.kind}\n"
            for labels, value, ending in family.samples:
                yield f"{family.name}{ending or ('_total' if is_counter else '')}{labels} {number(value)}\n"


def page(families: Iterable[MetricFamily], accept: str = "") -> tuple[str, bytes]:
    """Return content type and body in the form that a request's `Accept` header asks for."""
    if "application/openmetrics-text" in accept:
        return OPEN_METRICS_TYPE, open_metrics(families)
    return TEXT_TYPE, text(families)


def _encodable(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
