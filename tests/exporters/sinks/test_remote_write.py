from __future__ import annotations

import base64

import numpy as np
import pytest

pytest.importorskip("google.protobuf", reason="needs protobuf")

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.series.remote_write import RemoteWriteSink
from stepscope.exporters.sinks.series.remote_write_message import in_time_order
from stepscope.exporters.sinks.series.sift import sift
from stepscope.exporters.sinks.sink import (
    Receipt,
    RunNews,
    SentRow,
    SinkDeniesError,
    SinkDownError,
    SinkRefusesError,
)
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.remote_write_schema import read_1, read_2
from tests.exporters.sinks.web_server import Reply, WebServer
from tests.exporters.sinks.wire_receiver import Receiver, unpacked

WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
LABELS = (("__name__", "training_loss"), ("project", "mnist"), ("rank", "0"), ("run", RUN.id))


def is_2(request):
    return request.headers["content-type"] == "application/x-protobuf;proto=io.prometheus.write.v2.Request"


def confirming(request):
    """Answer as a receiver of 2.0 does, which does not take 1.0."""
    assert is_2(request)
    assert request.headers["x-prometheus-remote-write-version"] == "2.0.0"
    written = sum(len(samples) for _, samples, _ in read_2(unpacked(request)))
    return 204, {WRITTEN: str(written)}, b""


def old(status):
    """Return a receiver of 1.0 that answers so to 2.0."""

    def answer(request):
        if is_2(request):
            return status, {}, b"" if status < 300 else b"unsupported"
        assert request.headers["content-type"] == "application/x-protobuf"
        assert request.headers["x-prometheus-remote-write-version"] == "0.1.0"
        read_1(unpacked(request))
        return 204, {}, b""

    return answer


def sink_of(receiver, query="", known=None, environ=None, user=""):
    address = address_of(f"prometheus+http://{user}{receiver.place}/api/v1/write{query}")
    sink = RemoteWriteSink(address, {"HOME": "/nonexistent"} if environ is None else environ)
    sink.kept = sink.open(RUN, known or {})
    return sink


def losses(*values, start=1.0, gap=1.0):
    return batch_of([SentRow(0, 0, i, i, start + i * gap, {"loss": value}) for i, value in enumerate(values)])


def samples_1(receiver):
    """Return the samples of all 1.0 messages with series."""
    return [
        sample
        for request in receiver.requests
        if not is_2(request)
        for _, found in read_1(unpacked(request))
        for sample in found
    ]


def test_a_server_that_confirms_gets_2():
    """A server that counts what it wrote gets 2.0, with type, help and unit of each series."""
    with Receiver(confirming) as receiver:
        sink = sink_of(receiver)
        assert sink.kept["version"] == "2"
        assert sink.send(losses(0.5, 0.25)) == Receipt()
        sink.close()
        [*_, request] = receiver.requests
        assert read_2(unpacked(request)) == [(LABELS, [(1000, 0.5), (2000, 0.25)], (2, "Current training loss", ""))]
        assert request.path == "/api/v1/write"


@pytest.mark.parametrize("status", [204, 400, 415])
def test_an_old_server_gets_1(status):
    """A server that does not confirm an empty 2.0 message gets all data as 1.0, and that is remembered."""
    with Receiver(old(status)) as receiver:
        sink = sink_of(receiver)
        assert sink.kept["version"] == "1"
        assert sink.send(losses(0.5)) == Receipt()
        assert samples_1(receiver) == [(1000, 0.5)]
        sink.close()
        count = len(receiver.requests)
        sink = sink_of(receiver, known=sink.kept)
        assert len(receiver.requests) == count
        sink.send(losses(0.5))
        assert not is_2(receiver.requests[-1])
        sink.close()


@pytest.mark.parametrize("status", [204, 400, 415])
def test_a_server_that_became_old_gets_the_batch_again(status):
    """If a server that spoke 2.0 stops to confirm, the same batch goes as 1.0, and so do the next ones."""
    with Receiver(old(status)) as receiver:
        sink = sink_of(receiver, known={"version": "2"})
        sink.send(losses(0.5))
        sink.send(losses(0.25, start=9.0))
        assert [is_2(request) for request in receiver.requests] == [True, False, False]
        assert samples_1(receiver) == [(1000, 0.5), (9000, 0.25)]
        sink.close()


@pytest.mark.parametrize("status", [204, 400])
def test_what_2_leaves_out_is_refused(status):
    """If a server wrote fewer samples than it got, the rest is refused and not sent again."""
    with Receiver(lambda request: (status, {WRITTEN: "1"}, b"out of order sample for series x")) as receiver:
        sink = sink_of(receiver, "?version=2")
        receipt = sink.send(losses(1.0, 2.0, 3.0))
        assert receipt.refused == 2
        assert status == 204 or "out of order" in receipt.why
        assert len(receiver.requests) == 1
        sink.close()


def test_a_server_that_dislikes_empty_messages_is_used():
    """A server that refuses a message without series gets data as 1.0; only the probe reports it."""

    def answer(request):
        return (204, {}, b"") if unpacked(request) and not is_2(request) else (400, {}, b"no series")

    with Receiver(answer) as receiver:
        sink = sink_of(receiver)
        assert sink.send(losses(1.0)) == Receipt()
        with pytest.raises(SinkRefusesError, match="no series"):
            sink.probe()
        sink.close()


def test_a_batch_that_both_versions_refuse_changes_nothing():
    """If a server refuses a batch in both versions, the next batch is tried in 2.0 again."""
    answers = [(400, {}, b"broken"), (400, {}, b"broken"), (204, {WRITTEN: "1"}, b"")]
    with Receiver(lambda request: answers.pop(0)) as receiver:
        sink = sink_of(receiver, known={"version": "2"})
        with pytest.raises(SinkRefusesError):
            sink.send(losses(1.0))
        assert sink.send(losses(2.0)) == Receipt()
        assert [is_2(request) for request in receiver.requests] == [True, False, True]
        sink.close()


def test_a_forced_version_is_kept():
    """With version=2 an old server is a mistake that is reported; with version=1 nothing else is tried."""
    with Receiver(old(204)) as receiver:
        sink = sink_of(receiver, "?version=2")
        with pytest.raises(SinkDeniesError, match=r"2\.0"):
            sink.send(losses(1.0))
        sink.close()
        sink = sink_of(receiver, "?version=1")
        sink.send(losses(1.0))
        sink.close()
        assert [is_2(request) for request in receiver.requests] == [True, False]
    with pytest.raises(UsageError, match="version=1"):
        RemoteWriteSink(address_of("prometheus+http://localhost/?version=3"), {})


def test_one_millisecond_has_one_sample():
    """Of several points of a series in one millisecond the last is sent; the others are counted as merged."""
    with Receiver(confirming) as receiver:
        sink = sink_of(receiver)
        assert sink.send(losses(1.0, 2.0, 3.0, 4.0, gap=0.0005)) == Receipt(merged=2)
        assert sink.send(losses(5.0, 6.0, start=1.0015, gap=0.0005)) == Receipt(merged=1)
        sent = [samples for request in receiver.requests for _, samples, _ in read_2(unpacked(request))]
        assert sent == [[(1000, 2.0), (1001, 4.0)], [(1002, 6.0)]]
        sink.close()


def test_times_rise_in_a_message():
    """Points of a series are sent in the order of their times, older ones of a later batch as well."""
    with Receiver(confirming) as receiver:
        sink = sink_of(receiver)
        sink.send(losses(1.0, 2.0, 3.0, start=9.0, gap=-1.0))
        sink.send(losses(4.0, start=2.0))
        sent = [samples for request in receiver.requests for _, samples, _ in read_2(unpacked(request))]
        assert sent == [[(7000, 3.0), (8000, 2.0), (9000, 1.0)], [(2000, 4.0)]]
        sink.close()


def test_a_batch_that_failed_is_sent_again_whole():
    """A batch that the server did not take is sent with all its points when it is tried again."""
    answers = [(503, {"Retry-After": "7"}, b""), (204, {WRITTEN: "2"}, b"")]
    with Receiver(lambda request: answers.pop(0)) as receiver:
        sink = sink_of(receiver, known={"version": "2"})
        with pytest.raises(SinkDownError) as caught:
            sink.send(losses(1.0, 2.0))
        assert caught.value.retry_after == 7
        assert sink.send(losses(1.0, 2.0)) == Receipt()
        assert receiver.requests[0].body == receiver.requests[1].body
        sink.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, {"Content-Type": "text/html"}, b"<html>login</html>"), SinkDownError),
        ((429, {}, b""), SinkDownError),
        ((500, {}, b""), SinkDownError),
        ((401, {}, b"secret-token is wrong"), SinkDeniesError),
        ((404, {}, b"remote write receiver needs to be enabled"), SinkDeniesError),
        ((400, {}, b"unsupported path requested"), SinkDeniesError),
        ((400, {}, b"cannot unmarshal"), SinkRefusesError),
        ((302, {"Location": "/login"}, b""), SinkDeniesError),
    ],
)
@pytest.mark.parametrize("version", ["1", "2"])
def test_answers_mean_errors(answer, error, version):
    """Each answer leads to the error that says what to do, and none shows the token."""
    with Receiver(lambda request: answer) as receiver:
        sink = sink_of(receiver, "?token=secret-token", known={"version": version})
        with pytest.raises(error) as caught:
            sink.send(losses(1.0))
        assert "secret-token" not in str(caught.value)
        with pytest.raises(error):
            sink.probe()
        sink.close()


@pytest.mark.parametrize(
    ("status", "text"),
    [(400, "user=1: err: sample out of order (err-mimir-sample-out-of-order)"), (409, "out of order")],
)
def test_partly_stored_is_not_sent_again(status, text):
    """A 1.0 server that says it left out samples, and is not Prometheus, has stored the rest: nothing is repeated."""
    with Receiver(lambda request: (status, {}, text.encode())) as receiver:
        sink = sink_of(receiver, "?version=1")
        receipt = sink.send(losses(1.0, 2.0))
        assert (receipt.refused, "out of order" in receipt.why, len(receiver.requests)) == (1, True, 1)
        sink.close()


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("how", ["cut", ""])
def test_a_sample_that_came_before_is_not_counted_as_refused(version, how):
    """A server that has stored a sample, and lost the connection before its answer, refuses the second as old."""
    old_sample = Reply(400, b"out of order sample", {WRITTEN: "0"} if version == "2" else {})
    lost = [Reply(how="cut")] if how else []
    with WebServer(Reply(204, b"", {WRITTEN: "1"}), *lost, old_sample) as server:
        sink = RemoteWriteSink(address_of(f"prometheus+{server.url}?version={version}"), {"HOME": "/nonexistent"})
        sink.open(RUN, {})
        assert sink.send(losses(0.5)) == Receipt()
        receipt = sink.send(losses(0.25, start=2.0))
        sink.close()
    assert (receipt.refused, receipt.merged) == ((0, 1) if how else (1, 0))


def test_parts_of_a_batch_whose_answer_was_lost_are_not_counted_as_refused():
    """A batch that may be stored, and comes again in smaller ones, is counted as stored in each of them."""
    cut, old_sample = Reply(how="cut"), Reply(400, b"out of order sample", {WRITTEN: "0"})
    with WebServer(cut, cut, old_sample) as server:
        sink = RemoteWriteSink(address_of(f"prometheus+{server.url}?version=2"), {"HOME": "/nonexistent"})
        sink.open(RUN, {})
        with pytest.raises(SinkDownError):
            sink.send(losses(0.5, 0.25))
        with pytest.raises(SinkDownError):
            sink.send(losses(0.5, 0.25))
        receipts = [sink.send(losses(0.5)), sink.send(losses(0.25, start=2.0)), sink.send(losses(0.25, start=3.0))]
        sink.close()
    assert [(receipt.refused, receipt.merged) for receipt in receipts] == [(0, 1), (0, 1), (1, 0)]


def test_credentials_come_from_the_address():
    """A token is sent as a bearer, user and password as basic credentials."""
    with Receiver(confirming) as receiver:
        sink_of(receiver, "?token=${TOKEN}", environ={"TOKEN": "a+b/c=&d"}).close()
        sink_of(receiver, user="me:p%40ss@").close()
        basic = base64.b64encode(b"me:p@ss").decode()
        assert [one.headers["authorization"] for one in receiver.requests] == ["Bearer a+b/c=&d", f"Basic {basic}"]


def test_news_are_series_at_rising_times():
    """News twice in one moment are reported at two times, and hold state, settings and the facts of the run."""
    with Receiver(confirming) as receiver:
        sink = sink_of(receiver, "?job=train")
        sink.clock = lambda: 100.0
        sink.report(RunNews(verdict="input bound"))
        sink.report(RunNews(state="finished"))
        found = {}
        for request in receiver.requests:
            for labels, samples, _ in read_2(unpacked(request)):
                found.setdefault(labels, []).extend(samples)
        state = [
            (("__name__", "stepscope_run_state"), ("job", "train"), ("project", "mnist"), ("run", RUN.id), ("state", s))
            for s in ("running", "finished")
        ]
        assert [found[one] for one in state] == [[(100000, 1.0), (100001, 0.0)], [(100000, 0.0), (100001, 1.0)]]
        info = [dict(labels) for labels in found if labels[0][1] == "stepscope_run_info"]
        assert info[0]["verdict"] == "input bound"
        assert (info[1]["host"], info[1]["commit"], info[1]["page"]) == (RUN.host, RUN.commit, RUN.page)
        assert [dict(labels)["key"] for labels in found if labels[0][1] == "stepscope_run_config"] == ["lr"]
        sink.close()


def test_the_probe_names_the_server():
    """A probe says which version is spoken where, and sends no series."""
    with Receiver(confirming) as receiver:
        sink = RemoteWriteSink(address_of(f"prometheus+http://{receiver.place}"), {})
        assert sink.probe() == f"Prometheus remote write 2.0 at {receiver.place}"
        assert [read_2(unpacked(request)) for request in receiver.requests] == [[]]
        assert receiver.requests[0].path == "/api/v1/write"
        sink.close()


def test_the_link_shows_the_run_without_secrets():
    """The link leads to the server's page of the run's series, and holds no password."""
    sink = RemoteWriteSink(address_of("prometheus+http://me:secret@host:9090/prom/api/v1/write?version=1"), {})
    link = sink.open(RUN, {})["link"]
    assert link == f"http://host:9090/prom/graph?g0.expr=%7Brun%3D%22{RUN.id}%22%7D&g0.tab=0"


class AllOrNothing:
    """Takes samples as Prometheus does: none of a message with one that is too old for its series or for the server."""

    def __init__(self, newest, oldest=100):
        self.newest, self.oldest, self.stored, self.calls = newest, oldest, [], 0

    def __call__(self, samples):
        self.calls += 1
        got = list(zip(samples.series.tolist(), samples.time.tolist(), strict=True))
        for series, time in got:
            if time < self.oldest:
                return "out of bounds"
            if time <= self.newest.get(series, 0):
                return "out of order sample"
        self.stored += got
        self.newest |= {series: max(time, self.newest.get(series, 0)) for series, time in got}
        return ""


def grid(series, times):
    return in_time_order(
        np.repeat(np.arange(series), len(times)), np.tile(np.array(times), series), np.ones(series * len(times))
    )


def test_only_what_is_old_is_refused():
    """Samples after the newest of their series are stored once, when those before it made the server refuse all."""
    samples = grid(4, range(1000, 2000))
    server = AllOrNothing({0: 1499, 1: 1499, 2: 1800, 3: 1800})
    sources = np.stack([samples.series // 2, samples.series * 0], axis=1)
    assert sift(samples, sources, server) == 2 * 500 + 2 * 801
    assert sorted(server.stored) == [(s, t) for s in range(4) for t in range(1500 if s < 2 else 1801, 2000)]
    assert server.calls < 40


@pytest.mark.parametrize("oldest", [1000, 1001, 1900, 5000])
def test_what_is_too_old_costs_few_requests(oldest):
    """A backlog before all that the server keeps is given up after a few requests."""
    samples = grid(3, range(1000, 2000))
    server = AllOrNothing({}, oldest)
    refused = sift(samples, np.zeros((len(samples), 2), np.int64), server)
    assert refused + len(server.stored) == len(samples)
    assert server.calls < 20
    assert all(time >= oldest for _, time in server.stored)
    assert oldest >= 2000 or server.stored


def test_a_search_that_fails_in_the_middle_goes_on():
    """Every other request fails: the search for what the server has already still ends, and nothing is lost."""
    newest, stored, count = {}, [], 0

    def flaky(request):
        nonlocal count
        count += 1
        if count % 2:
            return 503, {}, b"busy"
        got = [(labels, moment) for labels, samples in read_1(unpacked(request)) for moment, _ in samples]
        for labels, moment in got:
            if moment < 1000 or moment < newest.get(labels, 0):
                return 400, {}, b"out of bounds" if moment < 1000 else b"out of order sample"
        stored.extend(one for one in got if one[1] > newest.get(one[0], 0))
        newest.update(got)
        return 204, {}, b""

    rows = [SentRow(rank, 0, seq, seq, 1_795_000_000.0 + seq, {"loss": 1.0}) for rank in (0, 1) for seq in range(200)]
    with Receiver(flaky) as receiver:
        sink = sink_of(receiver, "?version=1")
        tries = 0
        for batch in (batch_of([row for row in rows if row.seq < 77 + row.rank]), batch_of(rows)):
            for _ in range(60):
                tries += 1
                try:
                    sink.send(batch)
                except SinkDownError:
                    continue
                break
            sink.open(RUN, {"version": "1"})
        sink.close()
    assert tries < 60
    assert len(stored) == len(set(stored)) == len(rows)
