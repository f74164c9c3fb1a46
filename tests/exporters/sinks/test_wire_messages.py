from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs protobuf")
pytest.importorskip("opentelemetry.proto", reason="needs opentelemetry-proto")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from stepscope.core.ring import NO_STEP
from stepscope.exporters.sinks.series.labelled import LabelledSeries
from stepscope.exporters.sinks.series.otlp_message import DataPoints, request
from stepscope.exporters.sinks.series.remote_write_message import in_time_order, message_1, message_2
from stepscope.exporters.sinks.series.snappy import literal_block
from tests.exporters.sinks.remote_write_schema import read_1, read_2
from tests.exporters.sinks.wire_receiver import unsnapped

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TABLES = st.lists(
    st.builds(
        lambda name, labels, text, unit, kind: LabelledSeries(
            name, (("__name__", name), *sorted(labels.items())), text, kind, unit
        ),
        TEXTS,
        st.dictionaries(TEXTS, TEXTS, max_size=4),
        TEXTS,
        st.sampled_from(["", "seconds", "bytes", "fortnights"]),
        st.sampled_from(["gauge", "counter"]),
    ),
    min_size=1,
    max_size=60,
)
TIMES = st.one_of(st.integers(0, 2**50), st.integers(-(2**40), 2**8))
VALUES = st.floats(width=64)


def rows(times):
    return st.lists(st.tuples(st.integers(0, 10**6), times, VALUES), min_size=1, max_size=50)


def columns(table, points):
    series, time, value = zip(*points, strict=True)
    return np.array(series, np.int64) % len(table), np.array(time, np.int64), np.array(value, np.float64)


def bits(value):
    """Return what tells a number from others; all NaN are one."""
    return "nan" if math.isnan(value) else struct.pack("<d", value)


def expected(table, series, time, value):
    """Return what is to be read back: the last value at each time, by series."""
    found = {}
    for number, moment, content in zip(series.tolist(), time.tolist(), value.tolist(), strict=True):
        found.setdefault(number, {})[moment] = bits(content)
    return [(table[number].labels, sorted(found[number].items())) for number in sorted(found)]


@given(TABLES, rows(TIMES))
def test_remote_write_1_reads_back(table, points):
    """The official protobuf reads from a 1.0 message the series and samples that went into it."""
    given_ = columns(table, points)
    found = read_1(message_1(table, in_time_order(*given_)))
    assert [(labels, [(t, bits(v)) for t, v in samples]) for labels, samples in found] == expected(table, *given_)


@given(TABLES, rows(TIMES))
def test_remote_write_2_reads_back(table, points):
    """The official protobuf reads from a 2.0 message the series, samples, types, helps and units that went into it."""
    given_ = columns(table, points)
    found = read_2(message_2(table, in_time_order(*given_)))
    assert [(labels, [(t, bits(v)) for t, v in samples]) for labels, samples, _ in found] == expected(table, *given_)
    used = [table[number] for number in sorted(set(given_[0].tolist()))]
    kinds = {"counter": 1, "gauge": 2}
    assert [about for *_, about in found] == [(kinds[one.kind], one.help, one.unit) for one in used]


def test_no_value_is_a_stale_marker():
    """A NaN with the bits that end a series is sent as the ordinary NaN."""
    table = [LabelledSeries("a", (("__name__", "a"),), "", "gauge", "")]
    value = np.array([0x7FF0000000000002, 0xFFF8000000000000], np.uint64).view(np.float64)
    samples = in_time_order(np.zeros(2, np.int64), np.arange(2), value)
    for message in (message_1(table, samples), message_2(table, samples)):
        assert message.count(struct.pack("<Q", 0x7FF8000000000001)) == 2


@given(
    TABLES, rows(st.integers(0, 2**62)), st.lists(st.one_of(st.none(), st.integers(-(2**63) + 1, 2**62)), min_size=50)
)
def test_otlp_reads_back(table, points, steps):
    """The official protobuf reads from an OTLP message each point with its time, value, labels and step."""
    series, time, value = columns(table, points)
    step = np.array([NO_STEP if one is None else one for one in steps[: len(points)]], np.int64)
    data = request({"service.name": "stepscope"}, table, DataPoints(series, time, value, step))
    [resource] = ExportMetricsServiceRequest.FromString(data).resource_metrics
    assert [(one.key, one.value.string_value) for one in resource.resource.attributes] == [
        ("service.name", "stepscope")
    ]
    found = []
    for metric in resource.scope_metrics[0].metrics:
        for point in metric.gauge.data_points:
            labels = {one.key: one.value.string_value for one in point.attributes if one.value.HasField("string_value")}
            ints = [one.value.int_value for one in point.attributes if one.value.HasField("int_value")]
            named = tuple(sorted(labels.items()))
            found.append((metric.name, named, point.time_unix_nano, bits(point.as_double), ints))
    wanted = [
        (
            table[number].name,
            tuple(sorted(pair for pair in table[number].labels if pair[0] != "__name__")),
            moment,
            bits(content),
            [] if one == NO_STEP else [one],
        )
        for number, moment, content, one in zip(
            *(column.tolist() for column in (series, time, value, step)), strict=True
        )
    ]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert len({metric.name for metric in resource.scope_metrics[0].metrics}) == len(resource.scope_metrics[0].metrics)


@given(st.binary(max_size=100_000))
def test_snappy_reads_back(data):
    """A Snappy block decodes to the data that went into it."""
    assert unsnapped(literal_block(data)) == data


def test_other_snappy_readers_agree():
    """A real Snappy library reads our blocks."""
    cramjam = pytest.importorskip("cramjam", reason="needs cramjam")
    for data in (b"", b"a", bytes(range(256)) * 1000):
        assert bytes(cramjam.snappy.decompress_raw(literal_block(data))) == data
