"""The bench of the sinks, in small: it finds what is missing, and meets every fault that it has drawn."""

from __future__ import annotations

import socket
from collections import Counter

import pytest

pytest.importorskip("opentelemetry.proto", reason="needs opentelemetry-proto")

from bench import sink_storm
from bench.sandbox import sandbox
from bench.sink_contents import Compared, OtlpStore, Recorded
from bench.sink_loop import urls
from bench.sink_proxy import BUSY, CUT, DIE, ERROR, KINDS, LIE, LOST, PARTIAL, FaultyProxy, drawn
from bench.sink_servers import blackhole, receivers
from bench.sink_storm import Aftermath, kills, storm
from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.sink import SentRow, SinkDownError
from stepscope.exporters.sinks.table import new_sink
from stepscope.store.sinks import SinkState
from tests.exporters.sinks.batches import RUN, batch_of

pytestmark = pytest.mark.processes

ROWS = [SentRow(0, 0, n, n, 1_795_000_000 + n / 10, {"bench/value": n / 3, "bench/number": float(n)}) for n in range(8)]
POINTS = [Recorded(name, round(row.time * 1e6), row.step, value) for row in ROWS for name, value in row.values.items()]


@pytest.fixture
def store():
    found = OtlpStore()
    yield found
    found.close()


def sink_at(port):
    sink = new_sink(address_of(f"otlp+http://127.0.0.1:{port}"), {"HOME": "/nonexistent"})
    sink.open(RUN, {})
    return sink


def lacks(store, tmp_path):
    found = store.target().compared(POINTS, tmp_path, SinkState("node", "otlp-1"))
    return found.missing, found.extra


def test_faults_are_drawn_for_every_sink():
    """A hundred faults are spread evenly over sinks and kinds, and a seed draws them again."""
    plan = drawn(3, 100, ["otlp", "mlflow", "prometheus"])
    assert sorted(map(len, plan.values())) == [33, 33, 34]
    assert set(plan["mlflow"]) == set(KINDS)
    assert set(plan["otlp"]) == {*KINDS, PARTIAL}
    assert max(Counter(plan["otlp"]).values()) - min(Counter(plan["otlp"]).values()) <= 1
    assert plan == drawn(3, 100, ["otlp", "mlflow", "prometheus"])


def test_the_comparison_finds_what_is_missing(store, tmp_path):
    """A store lacks all before the rows come, nothing after that, and what it dropped without its being counted."""
    assert lacks(store, tmp_path) == (len(POINTS), 0)
    sink = sink_at(store.port)
    sink.send(batch_of(ROWS[:-1]))
    assert lacks(store, tmp_path) == (2, 0)
    sink.send(batch_of(ROWS))
    sink.close()
    assert lacks(store, tmp_path) == (0, 0)
    store.drops += 3
    assert lacks(store, tmp_path) == (3, 0)


def test_a_partial_success_is_told_and_counted(store, tmp_path):
    """The receiver drops as many points as it says; those that come again are found."""
    proxy = FaultyProxy(store.port, [PARTIAL], 1)
    sink = sink_at(proxy.port)
    refused = 0
    while not proxy.is_healed:
        refused += sink.send(batch_of(ROWS)).refused
    assert refused == store.drops > 0
    repeated = store.repeated
    sink.send(batch_of(ROWS))
    assert store.repeated - repeated == len(store.dropped)
    sink.close()
    proxy.close()


@pytest.mark.parametrize("fault", [ERROR, BUSY, LIE, CUT, LOST, DIE])
def test_a_fault_is_a_failure_for_the_sink(fault, store):
    """Each fault but a partial success is a sink that is down; only an answer that is lost leaves points behind."""
    proxy = FaultyProxy(store.port, [fault], 1)
    failures = 0
    while not proxy.is_healed:
        before = store.stored.total()
        sink = sink_at(proxy.port)
        try:
            sink.send(batch_of(ROWS))
        except SinkDownError:
            failures += 1
            assert store.stored.total() - before == (len(POINTS) if fault == LOST else 0)
        sink.close()
    assert failures >= 1
    proxy.close()


def test_an_aftermath_says_what_failed():
    """If the sinks never have everything, or the run lost rows of the training, a figure says so."""
    figures = Aftermath(10, 12, None, (Compared("otlp", 0, 0),), "").figures("key", "what")
    found = {figure.key: (figure.value, figure.verdict) for figure in figures}
    assert found["key_missing_otlp"] == (2.0, "MISS")
    assert found["key_twice_otlp"] == (0.0, "pass")
    assert found["key_missing_mlflow"] == (None, "not run")
    assert found["key_seconds"][1] == "MISS"


def test_receivers_take_what_all_three_sinks_send():
    """The process that takes everything confirms rows of each of the three kinds of sinks."""
    with receivers() as port:
        for url in urls(port):
            sink = new_sink(address_of(url), {"HOME": "/nonexistent"})
            sink.settle = 0.0
            assert sink.probe()
            sink.open(RUN, {})
            assert sink.send(batch_of(ROWS)).refused == 0
            sink.close()


def test_a_black_hole_neither_takes_nor_refuses():
    """A connection to it ends by its own patience only."""
    with blackhole() as port, socket.socket() as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.connect(("127.0.0.1", port))


@pytest.mark.slow
def test_a_small_storm_loses_nothing(store, monkeypatch):
    """A live training whose sink has six faults sends every row."""
    monkeypatch.setattr(sink_storm, "SHARE", 0.8)
    with sandbox() as scratch:
        after = storm([store.target()], scratch / "storm", 6, 2)
    assert after.rows == after.logged > 0
    assert [(one.missing, one.extra) for one in after.compared] == [(0, 0)], after
    assert after.seconds is not None


@pytest.mark.slow
def test_a_few_kills_lose_nothing(store):
    """A live training whose sender is killed three times sends every row."""
    with sandbox() as scratch:
        after = kills([store.target()], scratch / "kills", 3, 1)
    assert after.rows == after.logged > 0
    assert [(one.missing, one.extra) for one in after.compared] == [(0, 0)], after
    assert after.seconds is not None
