from __future__ import annotations

import io
import json
import logging
import math
import stat
import threading
import uuid
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.logs import RESERVED, JsonFormatter, attach, request
from stepscope.core.trace_context import of_rank, parse

RUN = SimpleNamespace(id="20260101-000000-abcd", rank=2)


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


def lines(stream):
    return [json.loads(line, parse_constant=refuse) for line in stream.getvalue().splitlines()]


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def logger(stream):
    """A logger of the test's own, whose lines are JSON in `stream`."""
    made = logging.getLogger(f"test.{uuid.uuid4().hex}")
    made.propagate = False
    made.setLevel(logging.DEBUG)
    handler = attach(made, RUN, stream=stream, environ={})
    yield made
    made.removeHandler(handler)


@pytest.mark.promise("S2-006")
def test_line_finds_its_run(logger, stream):
    """A line is one JSON object with time, level, logger, message, run, rank, and the run's trace."""
    logger.warning("loss is %s", 0.5)
    [line] = lines(stream)
    place = of_rank(RUN.id, RUN.rank, {})
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", logger.name, "loss is 0.5")
    assert (line["run"], line["rank"]) == (RUN.id, RUN.rank)
    assert (line["trace_id"], line["span_id"], line["trace_flags"]) == (place.trace_id, place.span_id, "01")
    assert "parent_span_id" not in line


def test_time_is_utc_with_milliseconds():
    """The time of a line is ISO 8601 in UTC; a fraction that rounds up to a second does so."""
    record = logging.makeLogRecord({"msg": "x", "created": 1_700_000_000.9996})
    assert json.loads(JsonFormatter("run").format(record))["time"] == "2023-11-14T22:13:21.000Z"


def test_environment_puts_the_run_into_a_trace():
    """With a TRACEPARENT the lines carry its trace, and the span that started the run as their parent."""
    header = f"00-{'ab' * 16}-{'cd' * 8}-01"
    line = json.loads(JsonFormatter("run", environ={"TRACEPARENT": header}).format(logging.makeLogRecord({})))
    assert (line["trace_id"], line["parent_span_id"]) == ("ab" * 16, "cd" * 8)


def test_request_has_its_own_span(logger, stream):
    """Lines inside a request carry its trace and a span of its own, and still name run and run's trace."""
    header = f"00-{'ab' * 16}-{'cd' * 8}-01"
    with request(header) as place:
        logger.info("inside")
    logger.info("outside")
    inside, outside = lines(stream)
    assert (inside["trace_id"], inside["span_id"], inside["parent_span_id"]) == ("ab" * 16, place.span_id, "cd" * 8)
    assert (inside["run"], inside["run_trace_id"]) == (RUN.id, outside["trace_id"])
    assert parse(place.traceparent) is not None


def test_request_can_belong_to_the_run(logger, stream):
    """A request without a header is a part of the place that is given, or of nothing."""
    with request(within=of_rank(RUN.id, RUN.rank, {})) as place:
        logger.info("inside")
        with request("broken") as inner:
            assert (inner.trace_id, inner.parent_id) == (place.trace_id, place.span_id)
    with request() as alone:
        assert alone.parent_id == ""
    [line] = lines(stream)
    assert line["trace_id"] == of_rank(RUN.id, RUN.rank, {}).trace_id
    assert "run_trace_id" not in line


def test_requests_of_threads_do_not_mix(logger, stream):
    """A request marks the lines of its own thread only."""
    with request():
        worker = threading.Thread(target=lambda: logger.info("other"))
        worker.start()
        worker.join()
    [line] = lines(stream)
    assert line["span_id"] == of_rank(RUN.id, RUN.rank, {}).span_id


def test_added_fields_are_kept(logger, stream):
    """What a program adds is in the line; a name of ours gets an underscore; NaN is valid JSON."""
    logger.info("x", extra={"step": 3, "loss": math.nan, "rank": 9, "shape": (1, 2), "nested": {"inf": -math.inf}})
    [line] = lines(stream)
    assert (line["step"], line["loss"], line["rank"], line["rank_"]) == (3, "NaN", RUN.rank, 9)
    assert (line["shape"], line["nested"]) == ([1, 2], {"inf": "-Infinity"})


def test_exception_is_told(logger, stream):
    """The type and the traceback of an exception are fields of its line."""
    try:
        raise ValueError("wrong")  # noqa: TRY301 - to be logged
    except ValueError:
        logger.exception("failed")
    [line] = lines(stream)
    assert line["exception"] == "ValueError"
    assert line["traceback"].endswith("ValueError: wrong")


@pytest.mark.parametrize("secret", ["hf_abcdefghijklmnopqrstuvwxyz", "AKIAIOSFODNN7EXAMPLE"])
def test_secrets_are_redacted(logger, stream, secret):
    """No secret reaches a line: not in the message, an added field, a traceback or a URL."""
    try:
        raise ValueError(f"token={secret}")  # noqa: TRY301 - to be logged
    except ValueError:
        logger.exception(
            "%s", secret, extra={"api_key": secret, "url": f"https://user:{secret}@host/"}, stack_info=True
        )
    assert secret not in stream.getvalue()


@pytest.mark.parametrize("arguments", [("%d", "text"), ("%s %s", 1), (Unprintable(),), ("%s", Unprintable())])
def test_bad_arguments_still_make_a_line(arguments):
    """Arguments that do not fit and objects that cannot be printed make a line that says so."""
    record = logging.makeLogRecord({"msg": arguments[0], "args": arguments[1:]})
    assert "unreadable" in json.loads(JsonFormatter("run").format(record))["message"]


@given(text=st.text(), name=st.text(min_size=1), value=st.floats() | st.text() | st.none() | st.binary())
def test_any_record_is_one_line_of_json(text, name, value):
    """Whatever is logged, a record is one line of plain ASCII JSON with our fields unchanged."""
    record = logging.makeLogRecord({"msg": text, "name": text})
    vars(record).setdefault(name, value)
    line = JsonFormatter("run", 1, environ={}).format(record)
    fields = json.loads(line, parse_constant=refuse)
    assert line.isascii()
    assert line.isprintable()
    assert (fields["run"], fields["rank"]) == ("run", 1)


def test_long_messages_are_cut():
    """A message of any length makes a line of bounded length, and says what was left out."""
    line = JsonFormatter("run").format(logging.makeLogRecord({"msg": "x" * 10**6}))
    assert len(line) < 40_000
    assert "characters left out" in line


def test_attaching_again_replaces(logger, stream):
    """Attached twice, every line comes once; other handlers stay."""
    other = logging.StreamHandler(io.StringIO())
    logger.addHandler(other)
    second = io.StringIO()
    handler = attach(logger, RUN, stream=second)
    logger.info("x")
    assert (stream.getvalue(), len(lines(second))) == ("", 1)
    assert other in logger.handlers
    logger.removeHandler(handler)


def test_file_is_private(logger, tmp_path):
    """A log file is made for its owner alone and appended to."""
    path = tmp_path / "train.jsonl"
    for word in ("first", "second"):
        handler = attach(logger, RUN, path=path)
        logger.info(word)
    logger.removeHandler(handler)
    handler.close()
    assert [json.loads(line)["message"] for line in path.read_text(encoding="utf-8").splitlines()] == [
        "first",
        "second",
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_logger_may_be_named(stream):
    """A logger may be given by its name."""
    name = f"test.{uuid.uuid4().hex}"
    handler = attach(name, RUN, stream=stream)
    logging.getLogger(name).error("x")
    logging.getLogger(name).removeHandler(handler)
    assert lines(stream)[0]["logger"] == name


def test_reserved_fields_are_ours(logger, stream):
    """Every field that we write is reserved, so that nothing which a program adds can take its place."""
    with request(f"00-{'ab' * 16}-{'cd' * 8}-01"):
        logger.error("x", exc_info=ValueError("y"), stack_info=True)
    assert lines(stream)[0].keys() <= RESERVED
