"""Alerts of real trainings: killed, spiking, stopped by a rule, answered from outside; a watcher killed in between."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import stepscope
from tests.alerts.servers import Hook, MailServer, free_port
from tests.integration.processes import kill, of_module, until, watchers

TRAIN = """
import sys, time
import stepscope

run = stepscope.init(project="p", config_file=sys.argv[1])
print(run.path, flush=True)
step = 0
while not run.should_stop and step < 100_000:
    with run.step():
        run.log({"loss": 9.0 if step > 40 and len(sys.argv) > 2 else 1.0 / (step + 1)})
        time.sleep(0.01)
    step += 1
print("stopped at", step, flush=True)
run.finish()
"""
RULE = {"name": "high_loss", "when": "loss > 5", "severity": "critical", "message": "loss is {loss}", "remedy": "look"}


@pytest.fixture
def made(bench):
    """What a test has opened; all of it is closed, and no notifier stays."""
    found = []
    yield lambda one: found.append(one) or one
    for pid in watchers(*bench.roots):  # they would start it again
        kill(pid)
    until(lambda: not watchers(*bench.roots), "the end of the watchers")
    for pid in of_module("stepscope.watcher.notifier", *bench.roots):
        kill(pid)
    for one in reversed(found):
        one.close()


def configured(bench, **alerting):
    """Write a configuration in which a busy machine or a full disk is nobody's alert; return its path."""
    path = bench.folder / "alerts.json"  # which is YAML, too
    calm = {"profile": "quiet", "thresholds": {"disk_usage": 1.0}}
    path.write_text(json.dumps({"alerting": {"private_addresses": True, **calm, **alerting}}))
    return path


@pytest.mark.promise("S1-011")
def test_a_trainer_that_is_killed_is_told_by_mail(bench, made, tmp_path):
    """With its cause and what to do; nobody is left behind but the run."""
    server = made(MailServer(tmp_path))
    config = configured(bench, channels=["${MAIL_URL}"])
    environ = {"MAIL_URL": server.url(), "SSL_CERT_FILE": str(server.certificate)}
    trainer = bench.start(TRAIN, config, environ=environ)
    path = trainer.line()
    until(lambda: len(stepscope.open(path).events("notification")), "the channel to be asked")
    [asked] = stepscope.open(path).events("notification")
    assert (asked["state"], asked["channel"]) == ("ready", "channel-1")
    lines = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in watchers(*bench.roots))
    assert b"MAIL_URL" not in lines  # what others see in the list of processes says nothing of whom we tell
    trainer.process.send_signal(signal.SIGKILL)
    trainer.wait()
    until(lambda: server.box.mails, "a mail")
    [mail] = server.box.mails
    assert "killed by SIGKILL" in mail["mail"]["Subject"]
    assert "What to do" in server.box.html()
    bench.quiet()
    until(lambda: not of_module("stepscope.watcher.notifier", *bench.roots), "the end of the notifier")
    past = stepscope.open(path)
    assert past.state == "killed"
    assert [event["state"] for event in past.events("notification")] == ["ready", "sent"]
    content = b"".join(file.read_bytes() for file in past.path.rglob("*") if file.is_file())
    assert server.password.encode() not in content


def test_the_person_at_the_terminal_learns_of_a_wrong_channel_at_once(bench, made):
    """A port that nobody listens on is reported on stderr while the training goes on, without the address."""
    config = configured(bench, channels=[f"http://127.0.0.1:{free_port()}/hunter2"])
    trainer = bench.start(TRAIN, config)
    path = trainer.line()
    until(lambda: stepscope.open(path).events("notification"), "the channel to be asked")
    until(lambda: "alerts check" in trainer.process.stderr.readline(), "a line on stderr")
    kill(trainer.pid)
    trainer.wait()
    [asked] = stepscope.open(path).events("notification")
    assert asked["state"] == "unreachable"
    assert "hunter2" not in json.dumps(asked)


def test_a_rule_stops_the_training(bench, made):
    """`run.should_stop` becomes true, a flag asks for a checkpoint, and a run that ends well is no death."""
    hook = made(Hook())
    rule = {**RULE, "actions": ["checkpoint", "stop"]}
    trainer = bench.start(TRAIN, configured(bench, channels=[hook.url], rules=[rule]), "spike")
    assert trainer.wait() == 0
    path = trainer.out.splitlines()[0]
    assert "stopped at" in trainer.out
    assert int(trainer.out.split()[-1]) < 100_000
    hook.wait(1)
    bench.quiet()
    past = stepscope.open(path)
    assert (past.path / "checkpoint-requested.json").exists()
    rules = {one["rule"] for body in hook.bodies() for one in body["alerts"]}
    assert "high_loss" in rules
    assert "death" not in rules
    assert past.state == "finished"


def command(bench, *words):
    """Run `stepscope alerts`; return its answer."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(["src"]), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, "-m", "stepscope", "alerts", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        env=environ,
        timeout=240,
    )


def test_alerts_are_answered_from_outside(bench, made):
    """List, acknowledge and silence a live run; after its end a death is acknowledged, too."""
    hook = made(Hook())
    trainer = bench.start(TRAIN, configured(bench, channels=[hook.url], rules=[RULE]), "spike")
    path = trainer.line()
    hook.wait(1)
    until(lambda: "high_loss" in command(bench, "list", path).stdout, "the alert in the list")
    answer = command(bench, "ack", path, "high_loss", "--by", "me")
    assert answer.returncode == 0, answer.stderr
    facts = json.loads(command(bench, "list", path, "--json").stdout)
    assert [(row["rule"], row["state"]) for row in facts["alerts"] if row["rule"] == "high_loss"] == [
        ("high_loss", "acknowledged")
    ]
    answer = command(bench, "silence", path, "high_*", "--for", "10m")
    assert answer.stdout == "silenced high_* for 10 min\n"
    kill(trainer.pid)
    trainer.wait()
    until(lambda: any("death" in json.dumps(body) for body in hook.bodies()), "the death to be told")
    bench.quiet()
    assert command(bench, "ack", path, "death").returncode == 0
    facts = json.loads(command(bench, "list", path, "--json").stdout)
    states = {row["rule"]: row["state"] for row in facts["alerts"]}
    assert {name: states[name] for name in ("death", "high_loss")} == dict.fromkeys(
        ("death", "high_loss"), "acknowledged"
    )
    assert "no alert or rule of that name" in command(bench, "ack", path, "nothing").stderr
    assert "firing" in command(bench, "history", path).stdout


def test_a_watcher_that_is_killed_loses_no_alert_and_tells_none_twice(bench, made):
    """The trainer starts another one, which goes on where the first stopped."""
    hook = made(Hook())
    trainer = bench.start(TRAIN, configured(bench, channels=[hook.url], rules=[RULE]), "spike")
    trainer.line()
    hook.wait(1)
    killed = set(watchers(*bench.roots))
    for pid in killed:
        kill(pid)
    until(lambda: set(watchers(*bench.roots)) - killed, "another watcher")
    kill(trainer.pid)
    trainer.wait()
    until(lambda: any("death" in json.dumps(body) for body in hook.bodies()), "the death to be told")
    fired = [one["rule"] for body in hook.bodies() for one in body["alerts"] if one["state"] == "firing"]
    assert [fired.count(rule) for rule in ("death", "high_loss")] == [1, 1]


class Alertmanager:
    """Debian's package, with a configuration of the test's own."""

    def __init__(self, folder):
        """Start it on a free port."""
        self.port = free_port()
        file = folder / "alertmanager.yml"
        file.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
        self.process = subprocess.Popen(
            [
                "prometheus-alertmanager",
                f"--config.file={file}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--cluster.listen-address=",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        until(self.listens, "Alertmanager")

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def alerts(self):
        """Return what fires there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v2/alerts?active=true", timeout=60) as answer:
            return json.load(answer)

    def close(self):
        """Stop it."""
        self.process.kill()
        self.process.wait()


def has_alertmanager():
    """Say whether this machine has one."""
    import shutil

    return shutil.which("prometheus-alertmanager") is not None


@pytest.mark.skipif(not has_alertmanager(), reason="needs Alertmanager: apt-get install prometheus-alertmanager")
def test_alertmanager_takes_our_alerts(made, tmp_path):
    """By its API: an alert fires there with its labels and remedy, and is over when ours is."""
    from tests.alerts.office import Office
    from tests.alerts.servers import alert

    manager = made(Alertmanager(tmp_path))
    office = made(Office(tmp_path, f"alertmanager+http://127.0.0.1:{manager.port}"))
    office.tell(alert(labels={"team": "vision", "odd key": "x"}), alert("gpu_hot", 1, severity="critical"))
    office.deliver()
    until(lambda: len(manager.alerts()) == 2, "both alerts")
    found = {one["labels"]["alertname"]: one for one in manager.alerts()}
    assert set(found) == {"loss_spike", "gpu_hot"}
    labels = found["loss_spike"]["labels"]
    assert (labels["severity"], labels["team"], labels["odd_key"], labels["run"]) == ("warning", "vision", "x", "r1")
    assert found["loss_spike"]["annotations"]["remedy"] == "lower the learning rate"
    office.tell(alert(state="resolved", labels={"team": "vision", "odd key": "x"}))
    office.deliver()
    until(lambda: [one["labels"]["alertname"] for one in manager.alerts()] == ["gpu_hot"], "the end of one alert")
