"""Sinks of real trainings: every row arrives once, whoever is killed, and nothing of it is in the trainer's way."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import stepscope
from bench.processes import find
from stepscope.store.layout import RunFolder
from stepscope.store.sinks import DONE, read_sinks
from tests.exporters.sinks.web_server import Reply, WebServer
from tests.integration import ledger
from tests.integration.processes import kill, until, wait_until_written, watchers

SENDER = "stepscope.watcher.sender"
TRAINER = """
    import sys, time
    import stepscope

    run = stepscope.init(project="sinks", samplers__enabled=False, exporters={"sinks": eval(sys.argv[1])})
    print(run.path, flush=True)
    for number in range(int(sys.argv[2])):
        run.log({"loss": number / 3, "twice": 2.0 * number})
        time.sleep(0.002)
    run.finish()
    print("ended", flush=True)
"""


def trackio(folder):
    return f"trackio://?dir={folder}"


def arrived(folder):
    """Return the rows in Trackio's inbox: those of one id count once, as Trackio imports them."""
    found = {}
    for path in sorted(Path(folder).rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "metric":
                found[record["log_id"]] = (record["step"], record["metrics"])
    return list(found.values())


def senders(path):
    return find(SENDER, Path(path))


def sent_to(path):
    return {state.name: state for state in read_sinks(RunFolder(Path(path)))}


def expected(path):
    """Return the rows of the run, as the sink should have them."""
    past = stepscope.open(path)
    rows = {}
    for name in ("loss", "twice"):
        series = past.series(name)
        for step, value in zip(series.step.tolist(), series.value.tolist(), strict=True):
            rows.setdefault(step, {})[name] = value
    return sorted(rows.items())


def check(inbox, path):
    until(lambda: sent_to(path)["trackio"].state == DONE, lambda: f"the end of sending: {sent_to(path)}")
    found = [(step, metrics) for step, metrics in arrived(inbox) if "loss" in metrics]
    assert not [step for step, count in Counter(step for step, _ in found).items() if count > 1]
    assert sorted(found, key=lambda row: row[0]) == expected(path)


def test_a_live_run_arrives_row_by_row(bench, tmp_path):
    """A sink of the configuration gets every row once, and the sender ends with the run."""
    trainer = bench.start(TRAINER, repr([trackio(tmp_path / "inbox")]), 300)
    path = trainer.line()
    until(lambda: arrived(tmp_path / "inbox"), "the first row, while the run goes on")
    wait_until_written(Path(path))
    check(tmp_path / "inbox", path)
    until(lambda: not senders(path), "the end of the sender")
    assert "stepscope/sink/trackio/sent_rows" in stepscope.open(path).names()


def test_a_killed_sender_costs_no_row(bench, tmp_path):
    """The watcher starts another, which goes on where the sink had confirmed."""
    trainer = bench.start(TRAINER, repr([{"url": trackio(tmp_path / "inbox"), "interval": 0.1}]), 8000)
    path = trainer.line()
    for _ in range(2):  # a third one might come after the watcher's end
        (pid,) = until(lambda: senders(path), "a sender")
        time.sleep(0.5)
        kill(pid)
        until(lambda old=pid: old not in senders(path), "its end")
    wait_until_written(Path(path))
    check(tmp_path / "inbox", path)


def test_a_killed_tree_is_sent_to_the_end(bench, tmp_path):
    """The sender outlives trainer and watcher, saves what they left in memory, and tells how the run ended."""
    settings = repr({"exporters": {"sinks": [trackio(tmp_path / "inbox")]}, "samplers": {"enabled": False}})
    trainer = bench.start(ledger.TRAINER, tmp_path / "ledger", 0.001, settings)
    path = trainer.line()
    until(lambda: senders(path) and watchers(path), "watcher and sender")
    time.sleep(0.5)
    for pid in (*watchers(path), trainer.pid):
        kill(pid)
    trainer.process.wait()
    until(lambda: sent_to(path).get("trackio") and sent_to(path)["trackio"].state == DONE, "the end of sending")
    found = [metrics["half"] for _, metrics in arrived(tmp_path / "inbox") if "half" in metrics]
    count = ledger.noted(tmp_path / "ledger")
    assert count <= len(found) <= count + 1
    assert sorted(found) == [step / 2 for step in range(len(found))]


def test_sinks_that_hang_or_are_dead_do_not_keep_the_training(bench, tmp_path):
    """The training ends as if there were none; what they lack is sent when one answers again, and nothing is lost."""
    with WebServer(Reply(how="hang")) as hanging:
        url = f"otlp+http://127.0.0.1:{hanging.port}"
        trainer = bench.start(TRAINER, repr([url, "prometheus+http://127.0.0.1:9/api/v1/write"]), 100)
        path = trainer.line()
        assert trainer.line() == "ended"
        trainer.process.wait()
        wait_until_written(Path(path))
        until(lambda: len(sent_to(path)) == 2 and sent_to(path)["prometheus"].why, "both sinks tried")
        until(lambda: sent_to(path)["otlp"].behind_rows >= 100, "the count of rows that wait")
        assert sent_to(path)["otlp"].sent_rows == 0
        for pid in senders(path):
            kill(pid)


def test_no_secret_of_an_address_is_left_anywhere(bench, tmp_path):
    """Neither the run, nor the runtime folders, nor the process list hold the password of a sink."""
    with WebServer(Reply(401, b"no")) as server:
        url = f"otlp+http://bob:pa55w0rd@127.0.0.1:{server.port}"
        trainer = bench.start(TRAINER, repr([url]), 1000)
        path = trainer.line()
        until(lambda: sent_to(path).get("otlp") and sent_to(path)["otlp"].why, "an answer of the sink")
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (*senders(path), *watchers(path))]
        assert commands
        assert not any(b"pa55w0rd" in command for command in commands)
        wait_until_written(Path(path))
        held = [file for file in Path(path).rglob("*") if file.is_file() and b"pa55w0rd" in file.read_bytes()]
        assert held == []
        for pid in senders(path):
            kill(pid)
