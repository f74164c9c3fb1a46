"""`stepscope alerts`: what needs no live run; tests/integration/test_alert_runs.py has the rest."""

from __future__ import annotations

import json
import time

import pytest

from stepscope.alerts.delivery.outbox import DONE, FAILED, DeliveryJournal, Note, Queue
from stepscope.cli.main import main
from stepscope.store.states import NodeState, RankState
from tests.alerts.servers import Hook, alert, free_port
from tests.store.recorded import make_folder


@pytest.fixture(autouse=True)
def unguarded(monkeypatch, tmp_path):
    """Let this process stay able to connect anywhere, and begin in an empty folder."""
    import socket

    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path):
    """A run that is over, with two alerts, of which one is resolved."""
    folder = make_folder(tmp_path / "runs" / "p" / "r1")
    now = time.time()
    node = NodeState("n.0", 0)
    node.ranks[0] = RankState(pid=1, started=1, state="killed", ended=2)
    node.ended, node.time = True, round(now * 1e6)
    node.save(folder)
    path = folder.path / "events" / "n.0-0.jsonl"
    path.parent.mkdir(exist_ok=True)
    events = [
        alert(time=now - 100),
        alert("gpu_hot", 1, severity="critical", time=now - 50, text="GPU 0 \x1b[31mis hot"),
        alert(state="resolved", time=now - 20),
    ]
    lines = [json.dumps({"attempt": 0, **event, "time": round(event["time"] * 1e6)}) + "\n" for event in events]
    path.write_text("".join(lines))
    return folder.path


@pytest.fixture
def hook():
    made = Hook()
    yield made
    made.close()


def configure(path, **alerting):
    path.joinpath("stepscope.yaml").write_text(json.dumps({"alerting": {"private_addresses": True, **alerting}}))


def test_list_shows_what_fires_and_who_was_told(run, capsys):
    """Resolved ones are counted; text of a run cannot act on the terminal; a channel that fails is told."""
    Queue(run, "n").add([alert(), alert()])
    ledger = DeliveryJournal(run, "n")
    ledger.write(Note("k", "g", DONE, (0,), 1.0, "", "mail"))
    ledger.write(Note("k2", "g", FAILED, (0,), 1.0, "the server answered 500", "hook"))
    ledger.close()
    assert main(["alerts", "list", str(run)]) == 0
    out = capsys.readouterr().out
    assert "gpu_hot" in out
    assert "\x1b" not in out
    assert "1 resolved" in out
    assert "mail: sent 1, 1 wait" in out
    assert "hook: 2 alerts wait: the server answered 500" in out
    assert main(["alerts", "list", str(run), "--json", "--all"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {row["rule"]: row["state"] for row in facts["alerts"]} == {"gpu_hot": "firing", "loss_spike": "resolved"}


def test_history_shows_every_change(run, capsys):
    """Oldest first."""
    assert main(["alerts", "history", str(run)]) == 0
    out = capsys.readouterr().out
    assert out.index("loss_spike") < out.index("gpu_hot")
    assert out.count("resolved") == 1


def test_an_alert_of_a_run_that_is_over_is_acknowledged(run, capsys):
    """By its id or its rule; a silence makes no sense any more."""
    assert main(["alerts", "ack", str(run), "gpu_hot", "--by", "me", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["acknowledged"] == ["gpu_hot-1"]
    assert main(["alerts", "list", str(run), "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)["alerts"]] == ["acknowledged"]
    assert main(["alerts", "ack", str(run), "loss_spike"]) == 1
    assert "it is resolved" in capsys.readouterr().err
    assert main(["alerts", "silence", str(run), "gpu_*"]) == 1
    assert "sends no notifications" in capsys.readouterr().err


def test_rules_of_the_configuration_a_profile_and_a_file(tmp_path, capsys):
    """What applies is listed; a wrong rule is told and left out."""
    configure(tmp_path, rules=[{"name": "mine", "when": "loss > 5"}, {"name": "bad", "when": "los >"}])
    assert main(["alerts", "rules"]) == 0
    shown = capsys.readouterr()
    assert "mine" in shown.out
    assert "death" in shown.out
    assert "bad" in shown.err
    assert main(["alerts", "rules", "--profile", "quiet", "--json"]) == 0
    quiet = json.loads(capsys.readouterr().out)
    assert "strict" in quiet["profiles"]
    tmp_path.joinpath("rules.yaml").write_text("- {name: filed, when: loss > 3}\n")
    assert main(["alerts", "rules", "rules.yaml"]) == 0
    assert "filed" in capsys.readouterr().out


def test_check_finds_what_is_wrong_before_it_is_needed(tmp_path, hook, capsys):
    """Rules, channels, commands; nothing is sent. Exit code 1 if anything is wrong."""
    configure(tmp_path, channels=[{"url": hook.url, "name": "team"}])
    assert main(["alerts", "check"]) == 0
    assert "team: ready" in capsys.readouterr().out
    closed = f"http://127.0.0.1:{free_port()}/hunter2"
    rule = {"name": "mine", "when": "loss > 5", "actions": [{"run": "missing"}]}
    configure(tmp_path, channels=[hook.url, closed, "nothing"], rules=[rule])
    assert main(["alerts", "check", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert not facts["fine"]
    assert len(facts["problems"]) == 2
    assert [bool(row["why"]) for row in facts["channels"]] == [False, True]
    assert "hunter2" not in json.dumps(facts)
    assert main(["alerts", "check", "--offline"]) == 1
    assert [request for request in hook.requests if request["body"]] == []


def test_a_test_is_sent_over_every_channel(tmp_path, hook, capsys):
    """At once, and what failed is told with an exit code."""
    configure(tmp_path, channels=[{"url": hook.url, "secret": "s"}])
    assert main(["alerts", "test"]) == 0
    [body] = hook.bodies()
    assert body["alerts"][0]["rule"] == "test"
    assert "This is a test" in body["title"]
    configure(tmp_path, channels=[hook.url, f"http://127.0.0.1:{free_port()}"])
    assert main(["alerts", "test", "--json"]) == 1
    assert [row["sent"] for row in json.loads(capsys.readouterr().out.split("\n", 1)[1])["channels"]] == [True, False]
    assert main(["alerts", "test", "--channel", "none"]) == 1
    configure(tmp_path)
    assert main(["alerts", "test"]) == 1
    assert "alerting.channels is empty" in capsys.readouterr().err


def test_backtest_replays_old_runs(tmp_path, capsys):
    """What rules would have said, and which of it was for nothing."""
    rows = [{"step": step, "loss": 9.0 if step in {50, 180} else 1.0} for step in range(200)]
    tmp_path.joinpath("old.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tmp_path.joinpath("rules.yaml").write_text("- {name: high, when: loss > 5, cooldown: 0}\n")
    name = "old.jsonl"
    assert main(["alerts", "backtest", "rules.yaml", name, "--incident", f"{name}=50", "--json"]) == 0
    [rule] = json.loads(capsys.readouterr().out)["rules"]
    assert (rule["rule"], rule["fired"], rule["false"], rule["delay_steps"]) == ("high", 2, 1, 0)
    assert main(["alerts", "backtest", "rules.yaml", name]) == 0
    shown = capsys.readouterr().out
    assert "high" in shown
    assert "it is unknown which alerts were right" in shown
    path = str(tmp_path / name)
    for given, words, false in ((name, [], None), (name, ["--healthy", name], 2), (path, ["--healthy", path], 2)):
        assert main(["alerts", "backtest", "rules.yaml", given, *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rules"][0]["false"] == false
    assert main(["alerts", "backtest", "quiet", name]) == 0
    assert main(["alerts", "backtest", "rules.yaml", name, "--incident", "x"]) == 2
    assert main(["alerts", "suggest", name]) == 0
