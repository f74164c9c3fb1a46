"""Remote write to Debian's Prometheus and VictoriaMetrics: what they store is what was recorded."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import replace

import pytest

from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.series.remote_write import RemoteWriteSink
from stepscope.exporters.sinks.sink import AlertChange, Receipt, RunNews, SentRow
from tests.exporters.sinks.batches import RUN, batch_of
from tests.integration.processes import free_port, until

pytestmark = pytest.mark.processes


def fetched(url):
    """Return the body of a page; None while there is none."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read()
    except OSError:
        return None


@contextlib.contextmanager
def running(name, folder, ready, options):
    """Start a server; yield its address when it is ready."""
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}: apt-get install {name}")
    place = f"127.0.0.1:{free_port()}"
    command = [name, *(option.format(place=place, folder=folder) for option in options)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or fetched(f"http://{place}{ready}"), f"{name} to be ready")
        assert process.poll() is None, (folder / "log").read_text(errors="replace")
        yield place
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "empty.yml").touch()
    options = [
        "--config.file={folder}/empty.yml",
        "--storage.tsdb.path={folder}/data",
        "--web.listen-address={place}",
        "--web.enable-remote-write-receiver",
    ]
    with running("prometheus", folder, "/-/ready", options) as place:
        yield place


@pytest.fixture(scope="module")
def victoria(tmp_path_factory):
    folder = tmp_path_factory.mktemp("victoria")
    options = ["-storageDataPath={folder}/data", "-httpListenAddr={place}"]
    with running("victoria-metrics", folder, "/health", options) as place:
        yield place


def in_prometheus(place, run):
    """Return the raw samples of a run's series, by name, rank, attempt and metric: (milliseconds, value)."""
    query = urllib.parse.urlencode({"query": f'{{run="{run}"}}[2h]', "time": time.time() + 60})
    found = json.loads(fetched(f"http://{place}/api/v1/query?{query}"))["data"]["result"]
    return {
        key_of(one["metric"]): [(round(moment * 1000), float(value)) for moment, value in one["values"]]
        for one in found
    }


def in_victoria(place, run):
    """Return the same from VictoriaMetrics, which shows samples a moment after it got them."""
    fetched(f"http://{place}/internal/force_flush")
    query = urllib.parse.urlencode({"match[]": f'{{run="{run}"}}'})
    lines = fetched(f"http://{place}/api/v1/export?{query}").decode().replace("Inf", "Infinity").splitlines()
    found = {}
    for one in map(json.loads, (line.replace("+Infinity", "Infinity") for line in lines)):
        samples = zip(one["timestamps"], one["values"], strict=True)
        found.setdefault(key_of(one["metric"]), []).extend((moment, float(value)) for moment, value in samples)
    return {key: sorted(samples) for key, samples in found.items()}


def key_of(labels):
    return labels["__name__"], labels.get("rank"), labels.get("attempt"), labels.get("metric")


def run_called(name):
    return replace(RUN, id=f"{name}-{time.time_ns()}")


def opened(place, run, known=None):
    sink = RemoteWriteSink(address_of(f"prometheus+http://{place}/api/v1/write"), {})
    sink.kept = sink.open(run, known or {})
    return sink


def recent_rows(start):
    """Return rows of two ranks, a second attempt and the machine, in the minutes before now."""
    rows = [
        SentRow(
            rank,
            attempt,
            seq,
            seq,
            start + seq * 0.25 + attempt * 60,
            {"loss": 1 / (seq + 1), f"own/{seq % 7}": seq * 1.5},
        )
        for rank, attempt in ((0, 0), (0, 1), (1, 0))
        for seq in range(200)
    ]
    odd = [
        SentRow(0, 2, seq, seq, start + 120 + seq, {"odd": value})
        for seq, value in enumerate([math.inf, -math.inf, 1.5])
    ]
    machine = [SentRow(-1, 0, seq, None, start + seq, {"cpu/usage_ratio": seq / 100}) for seq in range(100)]
    return rows + odd + machine


def expected(rows):
    found = {}
    for row in rows:
        rank, attempt = (
            f"node{-1 - row.rank}" if row.rank < 0 else str(row.rank),
            str(row.attempt) if row.attempt else None,
        )
        for name, value in row.values.items():
            if name == "loss":
                key, sent = ("training_loss", rank, attempt, None), value
            elif name == "cpu/usage_ratio":
                key, sent = ("cpu_usage_percent", rank, attempt, None), value * 100.0
            else:
                key, sent = (f"stepscope_{name.replace('/', '_')}", rank, attempt, name), value
            found.setdefault(key, []).append((round(row.time * 1e6) // 1000, sent))
    return found


def agree(found, wanted, tolerance):
    """Return whether all samples are the same, but for a relative error of their values."""
    return {key: [moment for moment, _ in samples] for key, samples in found.items()} == {
        key: [moment for moment, _ in samples] for key, samples in wanted.items()
    } and all(
        math.isclose(one, other, rel_tol=tolerance)
        for key, samples in wanted.items()
        for (_, one), (_, other) in zip(samples, found[key], strict=True)
    )


@pytest.mark.parametrize(
    ("server", "read", "tolerance"),
    [("prometheus", in_prometheus, 0.0), ("victoria", in_victoria, 1e-10)],  # VictoriaMetrics keeps 12 digits
)
def test_every_row_is_stored(server, read, tolerance, request):
    """A server stores each sample of a run under its name and labels, with its time and value."""
    place = request.getfixturevalue(server)
    run = run_called("rows")
    rows = recent_rows(time.time() - 600)
    sink = opened(place, run)
    assert sink.kept["version"] == "1"
    batch = batch_of(rows)
    starts = batch.starts()
    for first in range(0, len(starts) - 1, 100):
        part = batch.part(starts[first], starts[min(first + 100, len(starts) - 1)])
        assert sink.send(part) == Receipt()
    sink.close()
    until(lambda: agree(read(place, run.id), expected(rows), tolerance), "every row", 20, every=0.2)


@pytest.mark.parametrize("server", ["prometheus", "victoria"])
def test_the_probe_finds_an_old_server(server, request):
    """Both servers of Debian take an empty 2.0 message without a word, and are found to speak 1.0."""
    place = request.getfixturevalue(server)
    sink = opened(place, RUN)
    assert sink.probe() == f"Prometheus remote write 1.0 at {place}"
    sink.close()


def test_rows_that_are_sent_again_are_stored_once(prometheus):
    """After a crash the rows before it come again with new ones: Prometheus keeps the old, and gets the new."""
    run = run_called("again")
    rows = recent_rows(time.time() - 600)
    half = [row for row in rows if row.seq < 120 - 30 * row.rank]
    sink = opened(prometheus, run)
    assert sink.send(batch_of(half)) == Receipt()
    sink.close()
    sink = opened(prometheus, run, sink.kept)
    receipt = sink.send(batch_of(rows))
    sink.close()
    equal = len(batch_of(half)) - receipt.merged  # the newest sample of a series may come again
    assert 0 <= equal <= len(in_prometheus(prometheus, run.id))
    assert receipt.refused == 0
    assert in_prometheus(prometheus, run.id) == expected(rows)


def test_another_value_at_a_stored_time_is_refused_alone(prometheus):
    """A value at the time of a stored one is refused; the others of its message are stored."""
    run, start = run_called("same"), time.time() - 60
    sink = opened(prometheus, run)
    sink.send(batch_of([SentRow(0, 0, 0, 0, start, {"loss": 1.0})]))
    sink.close()
    rows = [SentRow(0, 0, seq, seq, start + seq, {"loss": 2.0}) for seq in range(5)]
    sink = opened(prometheus, run, sink.kept)
    receipt = sink.send(batch_of([*rows, SentRow(1, 0, 0, 0, start, {"loss": 3.0})]))
    sink.close()
    assert receipt.refused == 1
    assert "duplicate sample" in receipt.why
    [first, other] = sorted(in_prometheus(prometheus, run.id).values(), key=len, reverse=True)
    assert [value for _, value in first] == [1.0, 2.0, 2.0, 2.0, 2.0]
    assert [value for _, value in other] == [3.0]


def test_what_is_too_old_is_given_up(prometheus):
    """Rows from before all that Prometheus keeps in memory are refused, and newer ones are stored."""
    run, now = run_called("old"), time.time()
    sink = opened(prometheus, run)
    sink.send(batch_of([SentRow(1, 0, 0, 0, now, {"loss": 1.0})]))
    rows = [SentRow(0, 0, seq, seq, now - (7 * 86400 if seq < 50 else 60) + seq, {"loss": 2.0}) for seq in range(100)]
    receipt = sink.send(batch_of(rows))
    sink.close()
    found = in_prometheus(prometheus, run.id)
    assert receipt.refused == 50
    assert len(found["training_loss", "0", None, None]) == 50


def test_not_a_number_stays_one(prometheus):
    """A NaN is stored as a value, and does not end its series."""
    run, now = run_called("nan"), time.time() - 10
    sink = opened(prometheus, run)
    sink.send(batch_of([SentRow(0, 0, 0, 0, now, {"loss": math.nan}), SentRow(0, 0, 1, 1, now + 1, {"loss": 1.0})]))
    sink.close()
    [samples] = in_prometheus(prometheus, run.id).values()
    assert [repr(value) for _, value in samples] == ["nan", "1.0"]


def test_news_can_be_asked_for(prometheus):
    """State, facts and alerts of a run are series that Prometheus shows."""
    run = run_called("news")
    sink = opened(prometheus, run)
    alert = AlertChange("a", "loss-nan", "critical", "firing", "loss is NaN", time.time())
    for news in (RunNews(alerts=[alert]), RunNews(state="failed", verdict="loss became NaN")):
        sink.report(news)
    sink.close()
    query = urllib.parse.urlencode({"query": f'{{run="{run.id}"}} == 1', "time": time.time() + 1})
    answer = json.loads(fetched(f"http://{prometheus}/api/v1/query?{query}"))["data"]["result"]
    found = {(one["metric"]["__name__"], one["metric"].get("state") or one["metric"].get("rule")) for one in answer}
    assert ("stepscope_run_state", "failed") in found
    assert ("stepscope_run_info", "failed") in found
    assert ("stepscope_alert", "loss-nan") in found
    assert ("stepscope_run_state", "running") not in found
