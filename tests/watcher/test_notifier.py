"""The alert about a death quotes the last lines of the rank that began it."""

from __future__ import annotations

from bench.drawn_console import printed, write_console
from bench.drawn_machine import HOST
from bench.drawn_runs import START, sick, write
from stepscope.alerts.delivery.mail import mail_of
from stepscope.alerts.delivery.message import LastLines, Message, MessageSubject
from stepscope.alerts.delivery.notifier import Brief, Notifier
from stepscope.alerts.delivery.outbox import DeliveryJournal
from stepscope.watcher.notifier import last_lines_of

DEATH = {"rule": "death", "state": "firing", "severity": "critical", "text": "rank 1 has ended", "rank": 1}


def dead_run(path):
    """Return a run of 4 ranks whose rank 3 raised an exception that the others followed."""
    drawn = sick("ill", steps=60)
    drawn.state, drawn.cause = "failed", "exit code 1"
    write(path, drawn)
    write_console(path, printed(START / 1e6, 0.25, 60, 4, HOST, guilty=3))
    return path


def test_the_lines_are_those_of_the_guilty_rank(tmp_path):
    """The first error and the last lines of its rank are found from the run's folder."""
    found = last_lines_of(dead_run(tmp_path / "runs" / "demo" / "20261118-100000-dead"))
    assert "rank 3" in found.title
    assert "KeyError: 'tokens'" in found.title
    assert found.lines[-1] == "RuntimeError: cannot make batch 17"
    assert len(found.lines) <= 20


def test_a_healthy_run_has_no_last_lines(tmp_path):
    """Without an end that was an error there is nothing to quote."""
    drawn = sick("well", steps=60)
    drawn.state, drawn.cause, drawn.events = "finished", "", []
    assert last_lines_of(write(tmp_path / "runs" / "demo" / "20261118-100000-well", drawn)) == LastLines("")


def test_lines_in_a_message_are_safe():
    """Markup is escaped, secrets are hidden, and control characters are gone, in text and mail."""
    lines = ("  File <script>alert(1)</script>", "api_key=sk-abcdefghijklmnopqrstuvwx12345678 \x1b[31mred")
    message = Message("1", MessageSubject("r"), [DEATH], LastLines("First error: rank 3", lines))
    text, mail = message.text(), mail_of(message)
    assert "<script>" not in mail
    assert "    File" in text
    assert ">  File &lt;script" in mail
    for shown in (text, mail):
        assert "abcdefghijklmnop" not in shown
        assert "\x1b" not in shown
        assert "First error: rank 3" in shown


def test_only_a_death_quotes_lines_and_a_fault_does_not_stop_it(tmp_path):
    """Lines are looked up for a firing death only; if that fails, the alert says so and is sent."""
    (tmp_path / "alerts").mkdir()

    def broken(_run):
        raise OSError("disk is gone")

    made = Notifier(Brief(str(tmp_path), "n", {}), DeliveryJournal(tmp_path, "n"), lambda _: None, last_lines=broken)
    assert made._lines_for([{"rule": "loss-nan", "state": "firing"}]) == LastLines("")
    assert made._lines_for([{**DEATH, "state": "resolved"}]) == LastLines("")
    assert "disk is gone" in made._lines_for([DEATH]).title
