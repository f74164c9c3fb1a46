"""Prometheus remote write: 2.0 where the server confirms that it understands it, else 1.0.

A series is in order: its times rise, in milliseconds. 2.0 is only used with servers that say how many samples they
wrote; a 1.0 server answers to a 2.0 message as if all were well, and stores nothing.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlunsplit

import numpy as np

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.http import Answer, HttpClient, is_page, judge
from stepscope.exporters.sinks.series.labelled import SeriesTable, run_labels
from stepscope.exporters.sinks.series.news_series import NewsBoard
from stepscope.exporters.sinks.series.remote_write_message import (
    NO_SERIES,
    Samples,
    in_time_order,
    message_1,
    message_2,
)
from stepscope.exporters.sinks.series.sift import sift
from stepscope.exporters.sinks.series.snappy import literal_block
from stepscope.exporters.sinks.sink import (
    CALL_SECONDS,
    Receipt,
    Sink,
    SinkDeniesError,
    SinkDownError,
    SinkRefusesError,
    SinkSlowError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.sink import RunFacts, RunNews, SinkBatch

WRITE = "/api/v1/write"
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
HEADERS = {
    "1": {"Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"},
    "2": {
        "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        "X-Prometheus-Remote-Write-Version": "2.0.0",
    },
}
ROLLED_BACK = ("out of order sample", "out of bounds", "duplicate sample for timestamp", "too old sample")
"""How Prometheus begins its answer to a 1.0 message with a sample that it cannot take: then it has stored nothing."""
STORED = re.compile(r"out.of.order", re.IGNORECASE)
"""Found in the answer to a sample that is stored already, because it came before and the answer was lost."""
PARTLY = re.compile(r"out.of.order|out.of.bounds|duplicate.(sample|timestamp)|too.(old|far)", re.IGNORECASE)
"""Found in such answers of others, which have stored the rest: Mimir, Cortex and (with 409) Thanos."""
NEVER = -(2**63)
"""Time of the last sample of a series that has none."""


class RemoteWriteSink(Sink):
    """Writes to anything that takes Prometheus remote write: Prometheus, VictoriaMetrics, Mimir, Grafana Cloud."""

    kind: ClassVar[str] = "prometheus"
    most_points: ClassVar[int] = 20_000
    is_keyed: ClassVar[bool] = True
    is_ordered: ClassVar[bool] = True

    def __init__(self, address: SinkAddress, environ: Mapping[str, str]) -> None:
        super().__init__(address, environ)
        options = address.options(environ, ("version", "token", "ca", "job"))
        self._forced = options.get("version", "")
        if self._forced not in {"", "1", "2"}:
            cause = f"there is no remote write {self._forced[:20]!r}"
            raise UsageError(f"use sink {address.name}", cause, "write version=1 or version=2")
        target = address.target(environ)
        self._target = target._replace(path=target.path.rstrip("/") or WRITE, query="", fragment="")
        token = options.get("token")
        headers = {"Content-Encoding": "snappy"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = HttpClient(self._target, environ, headers, options.get("ca", ""))
        self._job = options.get("job", "")
        self._version = self._forced or "2"
        self._answers: dict[bytes, str] = {}
        """Why messages of the present call were refused, empty if taken: what is known if it has to be made again."""
        self._table = SeriesTable(address.prefix, {})
        self._last = np.empty(0, np.int64)
        self._news: NewsBoard | None = None
        self._reported = 0
        self._end = 0.0
        self._unsure = 0
        """Samples that the server may have already: the answer to their message was lost, or its sender."""
        self._comes_again = True
        """Whether the server may have samples of the present call already."""
        self.clock = time.time

    def probe(self) -> str:
        """Return the version that the server speaks; it gets empty messages only."""
        version = self._negotiated()
        port = f":{self._target.port}" if self._target.port else ""
        return f"Prometheus remote write {version}.0 at {self._target.hostname}{port}"

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:
        """Find out the version, unless it is known; the run exists as soon as it has samples."""
        self._answers.clear()
        self._table = SeriesTable(self.address.prefix, {**run_labels(run), "job": self._job})
        self._last = np.empty(0, np.int64)
        self._unsure = self.most_points if known else 0
        self._news = NewsBoard(run)
        self._version = self._forced or known.get("version", "")
        if self._version not in HEADERS:
            try:
                self._version = self._negotiated()
            except SinkRefusesError:  # a server may dislike a message without series: the first batch will tell
                self._version = "1"
        return {"version": self._version, **self._link(run)}

    def send(self, batch: SinkBatch) -> Receipt:
        """Send points; of several in one millisecond of a series the last counts."""
        points = batch.points
        numbers = self._table.numbers(points)
        values = self._table.values(numbers, points)
        samples = self._new(in_time_order(numbers, points.time // 1000, values))
        receipt = self._deliver(samples)
        return receipt._replace(merged=receipt.merged + len(points) - len(samples))

    def report(self, news: RunNews) -> None:
        """Send state, settings and alerts as series, at the present time."""
        if self._news is None:
            return
        now = max(int(self.clock() * 1000), self._reported + 1)
        values = self._news.values(news)
        numbers = [self._table.add(value.target, value.labels) for value in values]
        times = np.array([now + value.order for value in values], np.int64)
        self._reported = int(times.max())
        self._deliver(in_time_order(np.array(numbers, np.int64), times, np.array([value.value for value in values])))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _new(self, samples: Samples) -> Samples:
        """Return the samples without those at the very time of the last one that was sent of their series."""
        new = samples.time != self._last_times()[samples.series]
        return samples if new.all() else samples.select(new)

    def _last_times(self) -> NDArray[np.int64]:
        """Return the time of the last sample of each series, to be changed in place."""
        new = np.full(len(self._table.all) - len(self._last), NEVER, np.int64)
        if len(new):
            self._last = np.concatenate([self._last, new])
        return self._last

    def _deliver(self, samples: Samples) -> Receipt:
        """Send samples in one message, and remember their times."""
        self._end = time.monotonic() + CALL_SECONDS
        if not len(samples):
            return Receipt()
        self._comes_again, self._unsure = self._unsure > 0, max(self._unsure, len(samples))
        receipt = self._confirmed(samples) if self._version == "2" else None
        if receipt is None:
            receipt = self._sent_1(samples)
            self._version = "1"
        self._unsure = max(0, self._unsure - len(samples))
        np.maximum.at(self._last_times(), samples.series, samples.time)
        self._answers.clear()
        return receipt

    def _confirmed(self, samples: Samples) -> Receipt | None:
        """Send samples as 2.0; None if the server does not confirm them, and has to get them as 1.0."""
        answer = self._post("2", message_2(self._table.all, samples))
        written = _written(answer)
        is_taken = 200 <= answer.status < 300
        if written is not None and (is_taken or answer.status == 400):
            return self._left_out(max(0, len(samples) - written), self._said(answer))
        if is_taken or answer.status in {400, 415}:
            if is_taken and is_page(answer):
                raise SinkDownError("a web page answered, which is no receiver of remote write")
            if self._forced == "2":
                raise SinkDeniesError(f"the server answered {answer.status} and does not confirm remote write 2.0")
            return None
        judge(answer, self._client.scrubbed)
        return None

    def _left_out(self, count: int, why: str) -> Receipt:
        """Return the receipt for samples that the server left out: refused, unless it has them from an earlier try."""
        if not count:
            return Receipt()
        return Receipt(merged=count) if self._comes_again and STORED.search(why) else Receipt(count, why)

    def _sent_1(self, samples: Samples) -> Receipt:
        """Send samples as 1.0; of those that are refused as old, the newer ones are sent again."""

        def attempt(some: Samples) -> str:
            key = hashlib.blake2b(some.series.tobytes() + some.time.tobytes(), digest_size=16).digest()
            if key not in self._answers:
                self._answers[key] = asked(some)
            return self._answers[key]

        def asked(some: Samples) -> str:
            answer = self._post("1", message_1(self._table.all, some))
            text = answer.body[:2000].decode("utf-8", "replace").strip()
            if answer.status == 400 and text.startswith(ROLLED_BACK):
                return self._client.scrubbed(text)
            if answer.status in {400, 409} and PARTLY.search(text):
                raise _PartlyStoredError(self._said(answer))
            self._check_1(answer)
            return ""

        try:
            why = attempt(samples)
            if not why:
                return Receipt()
            sources = np.array([series.source for series in self._table.all])
            left = sift(samples, sources[samples.series], attempt)
            return self._left_out(left, why)
        except _PartlyStoredError as error:
            return self._left_out(1, str(error))

    def _check_1(self, answer: Answer) -> None:
        """Raise what an answer to a 1.0 message means."""
        if 200 <= answer.status < 300 and is_page(answer):
            raise SinkDownError("a web page answered, which is no receiver of remote write")
        if answer.status == 400 and b"unsupported path" in answer.body[:2000]:  # VictoriaMetrics' 404
            raise SinkDeniesError(self._said(answer))
        judge(answer, self._client.scrubbed)

    def _negotiated(self) -> str:
        """Return the version that the server speaks, by what it answers to messages without series."""
        self._end = time.monotonic() + CALL_SECONDS
        answer = self._post("2", NO_SERIES) if self._forced != "1" else None
        if answer is not None and 200 <= answer.status < 300 and _written(answer) is not None:
            return "2"
        if answer is not None and not 200 <= answer.status < 300 and answer.status not in {400, 415}:
            judge(answer, self._client.scrubbed)
        if self._forced == "2":
            raise SinkDeniesError("the server does not confirm remote write 2.0; leave out version=2")
        self._check_1(self._post("1", b""))
        return "1"

    def _post(self, version: str, message: bytes) -> Answer:
        """Send a message; all messages of one call share its time."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise SinkSlowError("no answer in time")
        answer = self._client.request("POST", "", literal_block(message), HEADERS[version], seconds, judged=False)
        self._comes_again |= answer.is_second
        return answer

    def _said(self, answer: Answer) -> str:
        text = self._client.scrubbed(answer.body[:2000].decode("utf-8", "replace"))
        return f"the server answered {answer.status}" + (f": {text}" if text else "")

    def _link(self, run: RunFacts) -> dict[str, str]:
        """Return the address of the run's series on Prometheus' own page, where the path tells it."""
        parts = self._target
        if not parts.path.endswith(WRITE):
            return {}
        expression = quote(f'{{run="{run.id}"}}', safe="")
        place = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.removesuffix(WRITE) + "/graph")
        return {"link": urlunsplit(place._replace(query=f"g0.expr={expression}&g0.tab=0"))}


class _PartlyStoredError(Exception):
    """The server has left out some samples for good, and does not say how many."""


def _written(answer: Answer) -> int | None:
    """Return how many samples a server says to have written."""
    text = (answer.headers.get(WRITTEN) or "").strip()
    return int(text) if text.isdecimal() and len(text) < 12 else None
