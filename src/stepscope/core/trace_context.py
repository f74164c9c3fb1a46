"""W3C trace context: the `traceparent` that ties a log line, a request and a run together.

The trace is the run: its id follows from the run's id, so that every rank has the same one without asking another. If
the environment has a TRACEPARENT, of a workflow that started the run, the run joins that trace instead. A span is a
rank, or a request inside one.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "TRACEPARENT"
SAMPLED = 0x01
"""The one flag that the first version defines."""
LONGEST = 512
"""Characters of a header of a version to come; a longer one is no traceparent."""

_FIELDS = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class TraceContext(NamedTuple):
    """A place in a trace."""

    trace_id: str
    """32 hexadecimal digits, not all 0."""
    span_id: str
    """16 hexadecimal digits, not all 0."""
    flags: int = SAMPLED
    parent_id: str = ""
    """The span that this one is a part of; empty for none."""

    @property
    def traceparent(self) -> str:
        """The header or variable that passes this place on, in version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags & SAMPLED:02x}"

    def child(self, random: Callable[[int], bytes] = os.urandom) -> TraceContext:
        """Return a new span below this one."""
        return TraceContext(self.trace_id, new_span_id(random), self.flags, self.span_id)


def parse(header: str | None) -> TraceContext | None:
    """Return the context of a `traceparent`; None if there is none, or it breaks the standard.

    An unknown version is read with the fields of the first, as the standard requires.
    """
    text = (header or "").strip(" \t")
    found = _FIELDS.match(text)
    if found is None or len(text) > LONGEST:
        return None
    version, trace_id, span_id, flags = found.groups()
    rest = text[found.end() :]
    is_whole = not rest if version == "00" else not rest or rest.startswith("-")
    if version == "ff" or not is_whole or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, int(flags, 16))


def of_rank(run_id: str, rank: int, environ: Mapping[str, str] | None = None) -> TraceContext:
    """Return the place of one rank of a run: always the same one for the same run, rank and TRACEPARENT."""
    around = parse((os.environ if environ is None else environ).get(VARIABLE))
    span_id = _digest(f"span {run_id} {rank}", 16)
    if around is None:
        return TraceContext(_digest(f"trace {run_id}", 32), span_id)
    return TraceContext(around.trace_id, span_id, around.flags, around.span_id)


def new_span_id(random: Callable[[int], bytes] = os.urandom) -> str:
    """Return a new span's id."""
    while (span_id := random(8).hex()) == _NO_SPAN:
        continue  # 0 means "no span"
    return span_id


def _digest(text: str, digits: int) -> str:
    import hashlib  # loads OpenSSL, which most runs never need

    found = hashlib.sha256(f"stepscope {text}".encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return found if found.strip("0") else f"{1:0{digits}x}"
