"""OTLP over HTTP: points as gauges of OpenTelemetry, in protobuf, compressed by gzip."""

from __future__ import annotations

import json
import time
import zlib
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote

import numpy as np

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.http import Answer, HttpClient, is_page
from stepscope.exporters.sinks.series.labelled import SeriesTable, run_labels
from stepscope.exporters.sinks.series.news_series import NewsBoard
from stepscope.exporters.sinks.series.otlp_message import DataPoints, request
from stepscope.exporters.sinks.sink import Receipt, Sink, SinkDownError
from stepscope.importers.binary.wire import fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.sink import RunFacts, RunNews, SinkBatch

METRICS = "/v1/metrics"
HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
SWITCH = {"": False, "true": True, "1": True, "false": False, "0": False}


class OtlpSink(Sink):
    """Sends to an OpenTelemetry collector, or to a backend that takes OTLP itself."""

    kind: ClassVar[str] = "otlp"
    most_points: ClassVar[int] = 10_000
    """A point takes at most 400 bytes or so, as names are short: 4 MiB, which every receiver takes."""

    def __init__(self, address: SinkAddress, environ: Mapping[str, str]) -> None:
        super().__init__(address, environ)
        options = address.options(environ, ("ca", "step"))
        step = options.get("step", "").lower()
        if step not in SWITCH:
            raise UsageError(
                f"use sink {address.name}", f"its step is {step[:20]!r}", "write step=true or leave it out"
            )
        self._with_step = SWITCH[step]
        target = address.target(environ)
        self._target = target._replace(path=target.path.rstrip("/") or METRICS, query="", fragment="")
        ca_file = options.get("ca") or _variable(environ, "CERTIFICATE")
        self._client = HttpClient(self._target, environ, _pairs(_variable(environ, "HEADERS")), ca_file)
        self._table = SeriesTable(address.prefix, {})
        self._resource: dict[str, str] = {}
        self._news: NewsBoard | None = None
        self.clock = time.time

    def probe(self) -> str:
        """Return what answers; it gets an empty request."""
        self._post(b"")
        port = f":{self._target.port}" if self._target.port else ""
        return f"OTLP over HTTP at {self._target.hostname}{port}"

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:
        """Remember whose points come; the run exists as soon as it has points."""
        self._table = SeriesTable(self.address.prefix, {})
        self._news = NewsBoard(run)
        labels = run_labels(run)
        self._resource = {
            "service.name": "stepscope",
            **({"host.name": run.host} if run.host else {}),
            **_pairs(self.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")),
            "stepscope.run": labels["run"],
            "stepscope.project": labels["project"],
        }
        return dict(known)

    def send(self, batch: SinkBatch) -> Receipt:
        """Send points, each at its own time."""
        points = batch.points
        if not len(points):
            return Receipt()
        numbers = self._table.numbers(points)
        values = self._table.values(numbers, points)
        step = points.step if self._with_step else None
        return self._sent(DataPoints(numbers, points.time * 1000, values, step))

    def report(self, news: RunNews) -> None:
        """Send state, settings and alerts as gauges, at the present time."""
        if self._news is None:
            return
        values = self._news.values(news)
        numbers = np.array([self._table.add(value.target, value.labels) for value in values], np.int64)
        orders = np.array([value.order for value in values], np.int64)
        times = int(self.clock() * 1e9) + orders * 1_000_000
        self._sent(DataPoints(numbers, times, np.array([value.value for value in values])))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _sent(self, points: DataPoints) -> Receipt:
        return self._post(request(self._resource, self._table.all, points))

    def _post(self, message: bytes) -> Receipt:
        packer = zlib.compressobj(1, wbits=31)
        answer = self._client.post("", packer.compress(message) + packer.flush(), HEADERS)
        refused, why = _read(answer)
        return Receipt(refused, self._client.scrubbed(why))


def _read(answer: Answer) -> tuple[int, str]:
    """Return the points that a receiver has refused, and why; SinkDownError if the answer is not one of a receiver."""
    kind = (answer.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if is_page(answer) or ((kind or answer.body) and kind not in {"application/x-protobuf", "application/json"}):
        raise SinkDownError(f"what answered is no receiver of OTLP: its answer is {kind[:40] or 'of no type'}")
    try:
        return _json_answer(answer.body) if kind == "application/json" else _protobuf_answer(answer.body)
    except (ValueError, TypeError, AttributeError):
        raise SinkDownError("what answered is no receiver of OTLP: its answer cannot be read") from None


def _protobuf_answer(body: bytes) -> tuple[int, str]:
    """Read an ExportMetricsServiceResponse."""
    refused, why = 0, ""
    for outer in fields(body):
        for inner in fields(outer.data) if outer.number == 1 else ():
            if inner.number == 1:
                refused = inner.signed
            elif inner.number == 2:
                why = inner.data.decode("utf-8", "replace")
    return max(0, refused), why


def _json_answer(body: bytes) -> tuple[int, str]:
    partial = (json.loads(body) if body.strip() else {}).get("partialSuccess") or {}
    return max(0, int(partial.get("rejectedDataPoints") or 0)), str(partial.get("errorMessage") or "")


def _variable(environ: Mapping[str, str], name: str) -> str:
    """Return a variable of OpenTelemetry's exporters: the one for metrics, else the one for all."""
    return environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _pairs(text: str) -> dict[str, str]:
    """Read `a=1,b=2`, in which values are percent-encoded; a part without `=` is left out."""
    parts = (part.partition("=") for part in text.split(","))
    return {unquote(name.strip()): unquote(value.strip()) for name, equals, value in parts if equals and name.strip()}
