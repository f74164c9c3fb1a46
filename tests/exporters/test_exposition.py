from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from stepscope.exporters.prometheus import exposition
from stepscope.exporters.prometheus.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    NAME,
    OPEN_METRICS_TYPE,
    TEXT_TYPE,
    MetricFamily,
    Sample,
    histogram,
    label_set,
    number,
    page,
    valid_name,
    with_label,
)

LABELS = st.dictionaries(st.sampled_from(["run", "rank", "metric"]), st.text(st.characters(exclude_categories=["Cs"])))
FLOATS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]) | st.floats()
HELP = st.text(st.characters(exclude_categories=["Cs"]))


def same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


@given(labels=LABELS, value=FLOATS, text=HELP)
@pytest.mark.parametrize(
    ("write", "read"),
    [(exposition.text, parse_text), (exposition.open_metrics, parse_open_metrics)],
    ids=["text", "open"],
)
def test_reference_parser_reads_what_was_written(write, read, labels, value, text):
    """The reference parser reads back labels and help of any text, and values to the same bits, in both forms."""
    [family] = read(write([MetricFamily("x", GAUGE, text, [Sample(label_set(labels), value)])]).decode())
    [sample] = family.samples
    assert (sample.name, sample.labels) == ("x", labels)
    assert same(sample.value, value)
    assert family.documentation.strip(" ") == text.strip(" ") or write is exposition.text  # the parsers strip blanks


@given(counts=st.lists(st.integers(0, 1000), min_size=4, max_size=4), total=st.floats(0, 1e9))
def test_histogram_is_cumulative(counts, total):
    """Buckets count what is at most their bound; the last one, the count, and the parser agree."""
    family = MetricFamily("h", HISTOGRAM, "help", histogram('{a="b"}', (0.1, 1.0, 2.5), counts, total))
    for read, text in (
        (parse_text, exposition.text([family])),
        (parse_open_metrics, exposition.open_metrics([family])),
    ):
        [found] = read(text.decode())
        values = {(sample.name, sample.labels.get("le")): sample.value for sample in found.samples}
        assert values["h_bucket", "+Inf"] == values["h_count", None] == sum(counts)
        assert values["h_bucket", "1.0"] == counts[0] + counts[1]
        assert values["h_sum", None] == total


def test_counter_is_named_by_each_form():
    """A counter is `x_total` throughout in the text format, and `x` with samples `x_total` in OpenMetrics."""
    family = MetricFamily("x", COUNTER, "All of it", [Sample("", 3)])
    assert exposition.text([family]) == b"# HELP x_total All of it\n# TYPE x_total counter\nx_total 3.0\n"
    assert exposition.open_metrics([family]) == b"# HELP x All of it\n# TYPE x counter\nx_total 3.0\n# EOF\n"


def test_empty_family_is_absent():
    """A family without samples leaves no trace on the page."""
    assert exposition.text([MetricFamily("x", GAUGE, "help", [])]) == b""
    assert exposition.open_metrics([MetricFamily("x", GAUGE, "help", [])]) == b"# EOF\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1e22, "1e+22"), (0.1, "0.1"), (7, "7.0")],
)
def test_numbers(value, text):
    """Non-finite values have Prometheus' words, others as many digits as they need."""
    assert number(value) == text


@given(text=st.text())
def test_any_text_becomes_a_name(text):
    """Any text becomes a valid name, and a name that is one stays so."""
    name = valid_name(text)
    assert NAME.fullmatch(name)
    assert valid_name(f"a_{name}") == f"a_{name}"


def test_label_values_are_escaped():
    """Backslash, quote and line end are escaped; what cannot be encoded is replaced."""
    assert label_set({"a": '\\"\n'}) == '{a="\\\\\\"\\n"}'
    assert label_set({"a": "\ud800"}) == '{a="?"}'
    assert label_set({}) == ""
    assert with_label("", "le", "1.0") == '{le="1.0"}'
    assert with_label('{a="b"}', "le", "1.0") == '{a="b",le="1.0"}'


def test_page_is_in_the_form_that_is_asked_for():
    """A scraper that accepts OpenMetrics gets it; any other gets text format 0.0.4."""
    assert page([], "application/openmetrics-text;version=1.0.0;q=0.5, */*;q=0.1") == (OPEN_METRICS_TYPE, b"# EOF\n")
    assert page([]) == (TEXT_TYPE, b"")
