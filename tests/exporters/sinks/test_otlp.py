from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("opentelemetry.proto", reason="needs opentelemetry-proto")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.series.otlp import OtlpSink
from stepscope.exporters.sinks.sink import (
    Receipt,
    RunNews,
    SentRow,
    SinkDeniesError,
    SinkDownError,
    SinkRefusesError,
)
from stepscope.version import __version__
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.wire_receiver import Receiver, unpacked

PROTOBUF = {"Content-Type": "application/x-protobuf"}
ROWS = [
    SentRow(0, 0, 1, 7, 1_795_000_000.000123, {"loss": 0.5, "gpu/1/utilization_ratio": 0.25}),
    SentRow(3, 2, 2, 8, 1_795_000_001.0, {"loss": math.inf}),
    SentRow(-2, 0, 3, None, 1_795_000_002.0, {"cpu/usage_ratio": 1.0}),
]


def taking(request):
    ExportMetricsServiceRequest.FromString(unpacked(request))
    return 200, PROTOBUF, b""


def sink_of(receiver, rest="", environ=None):
    sink = OtlpSink(address_of(f"otlp+http://{receiver.place}{rest}"), {"HOME": "/nonexistent", **(environ or {})})
    sink.open(RUN, {})
    return sink


def attributes(holder):
    return {one.key: one.value.string_value or one.value.int_value for one in holder.attributes}


def received(request):
    """Return the resource of a request and its points: name, unit, labels, nanoseconds, value."""
    [resource] = ExportMetricsServiceRequest.FromString(unpacked(request)).resource_metrics
    [scope] = resource.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("stepscope", __version__)
    points = [
        (metric.name, metric.unit, attributes(point), point.time_unix_nano, point.as_double)
        for metric in scope.metrics
        for point in metric.gauge.data_points
    ]
    return attributes(resource.resource), points


def test_points_arrive_with_their_times_and_labels():
    """Each point is a gauge with rank and attempt, at the recorded microsecond; the run is the resource."""
    with Receiver(taking) as receiver:
        sink = sink_of(receiver)
        assert sink.send(batch_of(ROWS)) == Receipt()
        sink.close()
        resource, points = received(receiver.requests[0])
        assert resource == {
            "service.name": "stepscope",
            "host.name": RUN.host,
            "stepscope.run": RUN.id,
            "stepscope.project": RUN.project,
        }
        assert points == [
            ("cpu_usage_percent", "%", {"rank": "node1"}, 1_795_000_002_000_000_000, 100.0),
            ("gpu_utilization_percent", "%", {"rank": "0", "gpu_id": "1"}, 1_795_000_000_000_123_000, 25.0),
            ("training_loss", "", {"rank": "0"}, 1_795_000_000_000_123_000, 0.5),
            ("training_loss", "", {"rank": "3", "attempt": "2"}, 1_795_000_001_000_000_000, math.inf),
        ]
        assert receiver.requests[0].path == "/v1/metrics"
        assert receiver.requests[0].headers["content-type"] == "application/x-protobuf"


def test_steps_are_sent_if_asked_for():
    """With step=true a point has its step as a number, if it has one."""
    with Receiver(taking) as receiver:
        sink = sink_of(receiver, "/otlp/v1/metrics?step=true")
        sink.send(batch_of(ROWS))
        sink.close()
        found = [labels.get("step") for _, _, labels, _, _ in received(receiver.requests[0])[1]]
        assert found == [None, 7, 7, 8]
        assert receiver.requests[0].path == "/otlp/v1/metrics"
    with pytest.raises(UsageError, match="step=true"):
        OtlpSink(address_of("otlp+http://localhost:4318?step=maybe"), {})


PARTIAL = ExportMetricsServiceResponse()
PARTIAL.partial_success.rejected_data_points = 3
PARTIAL.partial_success.error_message = "too old"
IN_JSON = json.dumps({"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}).encode()


@pytest.mark.parametrize(
    ("kind", "body", "receipt"),
    [
        ("application/x-protobuf", PARTIAL.SerializeToString(), Receipt(3, "too old")),
        ("application/json; charset=utf-8", IN_JSON, Receipt(3, "too old")),
        ("application/json", b"{}", Receipt()),
        ("application/x-protobuf", b"", Receipt()),
        ("", b"", Receipt()),
    ],
)
def test_partial_success_is_a_receipt(kind, body, receipt):
    """What a receiver has refused is in the receipt with its reason, and is not sent again."""
    with Receiver(lambda request: (200, {"Content-Type": kind} if kind else {}, body)) as receiver:
        sink = sink_of(receiver)
        assert sink.send(batch_of(ROWS)) == receipt
        assert len(receiver.requests) == 1
        sink.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, {"Content-Type": "text/html"}, b"<html>login</html>"), SinkDownError),
        ((200, {"Content-Type": "text/html"}, b""), SinkDownError),
        ((200, {"Content-Type": "text/plain"}, b"ok"), SinkDownError),
        ((200, PROTOBUF, b"<!doctype html>"), SinkDownError),
        ((200, PROTOBUF, b"\x0a\xff"), SinkDownError),
        ((200, {"Content-Type": "application/json"}, b"[1]"), SinkDownError),
        ((200, {"Content-Type": "application/json"}, b"{"), SinkDownError),
        ((429, {"Retry-After": "5"}, b""), SinkDownError),
        ((500, {}, b""), SinkDownError),
        ((503, {"Retry-After": "5"}, b""), SinkDownError),
        ((401, {}, b"key1 is wrong"), SinkDeniesError),
        ((400, {}, b"bad"), SinkRefusesError),
        ((413, {}, b""), SinkRefusesError),
    ],
)
def test_answers_mean_errors(answer, error):
    """Each answer leads to the error that says what to do, and none shows a header."""
    with Receiver(lambda request: answer) as receiver:
        sink = sink_of(receiver, environ={"OTEL_EXPORTER_OTLP_HEADERS": "api-key=key1"})
        with pytest.raises(error) as caught:
            sink.send(batch_of(ROWS))
        assert "key1" not in str(caught.value)
        assert getattr(caught.value, "retry_after", None) == (5 if "Retry-After" in answer[1] else None)
        with pytest.raises(error):
            sink.probe()
        sink.close()


def test_the_variables_of_opentelemetry_count():
    """Headers and resource attributes come from OpenTelemetry's variables; those for metrics before those for all."""
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "a=all",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "api-key = s%3Dcret ,x=1,broken",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,team=a%2Cb,stepscope.run=other",
    }
    with Receiver(taking) as receiver:
        sink = sink_of(receiver, environ=environ)
        sink.send(batch_of(ROWS))
        sink.close()
        [request] = receiver.requests
        assert (request.headers["api-key"], request.headers["x"]) == ("s=cret", "1")
        assert "a" not in request.headers
        resource = received(request)[0]
        assert (resource["service.name"], resource["team"], resource["stepscope.run"]) == ("mine", "a,b", RUN.id)


def test_an_untrusted_certificate_file_is_named():
    """A certificate file that cannot be read is reported by its path."""
    environ = {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nonexistent/ca.pem", "HOME": "/nonexistent"}
    sink = OtlpSink(address_of("otlp+https://127.0.0.1:1"), environ)
    with pytest.raises(SinkDeniesError, match=r"/nonexistent/ca\.pem"):
        sink.probe()


def test_news_are_gauges():
    """State and verdict of a run arrive as gauges at the present time."""
    with Receiver(taking) as receiver:
        sink = sink_of(receiver)
        sink.clock = lambda: 1_795_000_000.0
        sink.report(RunNews(state="failed", verdict="out of memory"))
        sink.close()
        points = received(receiver.requests[0])[1]
        info = [labels for name, _, labels, _, _ in points if name == "stepscope_run_info"]
        assert [(one["verdict"], one["state"], one["name"]) for one in info] == [("out of memory", "failed", RUN.name)]
        assert {labels["state"]: value for name, _, labels, _, value in points if name == "stepscope_run_state"}[
            "failed"
        ] == 1
        assert {time for _, _, _, time, _ in points} == {1_795_000_000_000_000_000}


def test_the_probe_sends_nothing():
    """A probe says what answers where, and sends an empty request."""
    with Receiver(taking) as receiver:
        sink = sink_of(receiver)
        assert sink.probe() == f"OTLP over HTTP at {receiver.place}"
        assert [unpacked(request) for request in receiver.requests] == [b""]
        sink.close()


def test_a_batch_stays_below_four_mebibytes():
    """The largest batch with the longest names fits into a message that every receiver takes."""
    rows = [SentRow(0, 0, seq, seq, 1.8e9 + seq, {f"{n}/{'x' * 250}": 1.0 for n in range(100)}) for seq in range(100)]
    with Receiver(taking) as receiver:
        sink = sink_of(receiver, "?step=true")
        assert len(batch_of(rows)) == sink.most_points
        sink.send(batch_of(rows))
        sink.close()
        assert len(unpacked(receiver.requests[0])) < 4 << 20
