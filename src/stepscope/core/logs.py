"""Log lines as JSON, each with the run, the rank and the W3C trace it belongs to.

It works with the standard `logging`: `attach` adds one handler to a logger, and `request` marks the lines of one
request. A line is one JSON object without secrets and control characters, whatever was logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.core.redact import jsonable, redact, redact_text
from stepscope.core.trace_context import TraceContext, of_rank, parse
from stepscope.core.walls import attempt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TextIO

LONGEST = 32_768
"""Characters of a message or traceback; the middle of a longer one is left out."""
REQUEST: ContextVar[TraceContext | None] = ContextVar("stepscope_request", default=None)
"""The request that this thread or task works on."""

_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Fields that every record has; the rest was added by the program with `extra=`."""
RESERVED = frozenset(
    {
        *("time", "level", "logger", "message", "run", "rank", "exception", "traceback", "stack"),
        *("trace_id", "span_id", "trace_flags", "parent_span_id", "run_trace_id"),
    }
)
"""Fields of our own; a program's field of the same name gets a trailing underscore."""


class NamedRun(Protocol):
    """As much of a run as its log lines name."""

    id: str
    rank: int


class JsonFormatter(logging.Formatter):
    """Format records of one rank of a run as JSON objects, a line each."""

    def __init__(self, run_id: str, rank: int = 0, *, environ: Mapping[str, str] | None = None) -> None:
        """Write lines of one rank; TRACEPARENT of `environ`, by default of this process, names an outer trace."""
        super().__init__()
        self.run_id, self.rank = run_id, rank
        self.context = of_rank(run_id, rank, environ)

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a line, without its end. Never raises."""
        request = REQUEST.get()
        context = request or self.context
        fields: dict[str, Any] = {
            "time": _moment(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _shortened(redact_text(_message(record))),
            "run": self.run_id,
            "rank": self.rank,
            "trace_id": context.trace_id,
            "span_id": context.span_id,
            "trace_flags": f"{context.flags:02x}",
        }
        if context.parent_id:
            fields["parent_span_id"] = context.parent_id
        if request is not None and request.trace_id != self.context.trace_id:
            fields["run_trace_id"] = self.context.trace_id
        fields |= self._failure(record)
        added = {name: value for name, value in vars(record).items() if name not in _KNOWN}
        extra = redact(jsonable(added)) if added else {}
        fields |= {f"{name}_" if name in RESERVED else name: value for name, value in extra.items()}
        return json.dumps(fields, allow_nan=False)

    def _failure(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the facts of an exception, and the stack if one was asked for."""
        found: dict[str, Any] = {}
        if record.exc_info and record.exc_info[0] is not None:
            found["exception"] = record.exc_info[0].__name__
            found["traceback"] = _shortened(redact_text(self.formatException(record.exc_info)))
        elif record.exc_text:
            found["traceback"] = _shortened(redact_text(record.exc_text))
        if record.stack_info:
            found["stack"] = _shortened(redact_text(self.formatStack(record.stack_info)))
        return found


def attach(
    logger: logging.Logger | str | None,
    run: NamedRun,
    *,
    path: str | os.PathLike[str] | None = None,
    stream: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> logging.Handler:
    """Write the records of a logger as JSON lines of a run; return the handler, for `removeHandler`.

    A second call for the same logger replaces the first handler, so that no line is written twice.

    Args:
        logger: a logger or its name; None for the root, which gets everything.
        run: what `stepscope.init` returned.
        path: a file to append to, which only its owner can read; else `stream`.
        stream: where to write without a path; standard error if omitted.
        environ: source of TRACEPARENT; the environment of this process if omitted.

    Raises:
        OSError: the file cannot be opened.
    """
    target = logger if isinstance(logger, logging.Logger) else logging.getLogger(logger)
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(stream)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonFormatter(run.id, run.rank, environ=environ))
    for former in [one for one in target.handlers if isinstance(one.formatter, JsonFormatter)]:
        target.removeHandler(former)
        former.close()
    target.addHandler(handler)
    return handler


@contextlib.contextmanager
def request(traceparent: str | None = None, *, within: TraceContext | None = None) -> Iterator[TraceContext]:
    """Mark the lines of this thread or task as those of one request; yields its trace context, to pass on.

    It continues the trace of the header `traceparent`; without a valid one it is a part of `within`, such as
    `JsonFormatter.context`.
    """
    around = parse(traceparent) or within or REQUEST.get()
    context = around.child() if around else TraceContext(os.urandom(16).hex(), "0" * 16).child()._replace(parent_id="")
    token = REQUEST.set(context)
    try:
        yield context
    finally:
        REQUEST.reset(token)


def _message(record: logging.LogRecord) -> str:
    """Return the text of a record, also if its arguments do not fit or cannot be shown."""
    return attempt(
        record.getMessage, lambda error: f"{jsonable(record.msg)} <unreadable arguments: {type(error).__name__}>"
    )


def _moment(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC with milliseconds."""
    thousandths = max(0, round(seconds * 1000))
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(thousandths // 1000))}.{thousandths % 1000:03d}Z"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}<{len(text) - LONGEST} characters left out>{text[-LONGEST // 2 :]}"
