from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.trace_context import SAMPLED, TraceContext, new_span_id, of_rank, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEX = st.sampled_from("0123456789abcdef")
TRACES = st.text(HEX, min_size=32, max_size=32).filter(lambda text: text.strip("0"))
SPANS = st.text(HEX, min_size=16, max_size=16).filter(lambda text: text.strip("0"))


def test_example_of_the_standard():
    """The example of the W3C recommendation is read by its fields."""
    assert parse(f"00-{TRACE}-{SPAN}-01") == TraceContext(TRACE, SPAN, SAMPLED)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01what",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-\u0660\u0661",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 600}",
    ],
)
def test_broken_headers_are_ignored(header):
    """What breaks the standard is no traceparent."""
    assert parse(header) is None


@pytest.mark.parametrize(
    "header", [f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-comes", f" 00-{TRACE}-{SPAN}-01 "]
)
def test_later_versions_are_read_by_the_known_fields(header):
    """A version that is not known yet is read by the fields of the first; blanks around a header are no part of it."""
    assert parse(header) == TraceContext(TRACE, SPAN, SAMPLED)


@given(trace=TRACES, span=SPANS, flags=st.integers(0, 1))
def test_what_is_made_is_read_back(trace, span, flags):
    """A traceparent that we write is read back to the same place."""
    assert parse(TraceContext(trace, span, flags).traceparent) == TraceContext(trace, span, flags)


@given(header=st.text(max_size=80) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.{0,3}"))
def test_any_text_is_read_or_ignored(header):
    """No text raises; what is accepted can be handed on."""
    found = parse(header)
    assert found is None or parse(found.traceparent) is not None


@pytest.mark.promise("S2-006")
@given(run=st.text(min_size=1, max_size=20), ranks=st.lists(st.integers(0, 1000), min_size=2, max_size=4, unique=True))
def test_ranks_share_the_trace(run, ranks):
    """All ranks of a run have one trace, each a span of its own, always the same, and valid by the standard."""
    places = [of_rank(run, rank, {}) for rank in ranks]
    assert len({place.trace_id for place in places}) == 1
    assert len({place.span_id for place in places}) == len(ranks)
    assert places == [of_rank(run, rank, {}) for rank in ranks]
    assert all(parse(place.traceparent) for place in places)


def test_runs_have_different_traces():
    """Two runs are two traces."""
    assert of_rank("a", 0, {}).trace_id != of_rank("b", 0, {}).trace_id


def test_environment_is_honoured():
    """A run that a traced workflow starts is a part of that trace, below the span that started it."""
    place = of_rank("run", 3, {"TRACEPARENT": f"00-{TRACE}-{SPAN}-00"})
    assert (place.trace_id, place.parent_id, place.flags) == (TRACE, SPAN, 0)
    assert place.span_id == of_rank("run", 3, {}).span_id


def test_broken_environment_is_ignored():
    """A TRACEPARENT that breaks the standard changes nothing."""
    assert of_rank("run", 0, {"TRACEPARENT": "rubbish"}) == of_rank("run", 0, {})


def test_child_is_below_its_parent():
    """A new span keeps trace and flags and names its parent; an id of only zeros is never made."""
    answers = iter([bytes(8), b"\1" * 8])
    parent = TraceContext(TRACE, SPAN, 0)
    assert parent.child(lambda _: next(answers)) == TraceContext(TRACE, "01" * 8, 0, SPAN)
    assert new_span_id() != new_span_id()
