from __future__ import annotations

import json

import pytest

from stepscope.alerts.delivery.mail import mail_of
from stepscope.alerts.delivery.message import Message, MessageSubject, inert, plain
from tests.alerts.servers import alert

HOSTILE = (
    "evil\r\nBcc: all@example.com\x1b[2J\u202egnp <script>alert(1)</script> <!channel> @everyone [x](http://bad) \x00"
)


def message(*events, **more):
    return Message(
        "id", MessageSubject(**{"run": "r1", "project": "mnist", "name": "first", "node": "n", **more}), events
    )


@pytest.mark.promise("S0-083")
def test_a_message_says_what_to_do():
    """The fact, the remedy, where and when, the values that decided, and how to look closer."""
    text = message(alert()).text()
    assert "warning: loss jumped to 0" in text
    assert "What to do: lower the learning rate" in text
    assert "rank 0, step 7" in text
    assert "metric loss, value 9.5, threshold 3" in text
    assert "stepscope alerts list r1" in text
    assert message(alert()).title() == "[warning] mnist/first: loss jumped to 0"


def test_many_alerts_are_one_readable_message():
    """The first ones in full, the rest counted by rule."""
    many = message(*(alert("gpu_hot" if number % 2 else "loss_spike", number) for number in range(1000)))
    assert many.title() == "[warning] mnist/first: 1000 alerts: loss_spike (500), gpu_hot (500)"
    assert "and 980 more: loss_spike (490), gpu_hot (490)" in many.text()
    assert len(many.text()) < 20_000
    assert len(mail_of(many)) < 20_000


def test_the_worst_decides_and_what_is_over_is_called_so():
    """A message that only tells of resolved alerts is no alarm."""
    over = alert(state="resolved", severity="critical")
    assert message(alert(), alert(severity="critical")).severity == "critical"
    assert message(over).severity == "info"
    assert message(over).title().startswith("[resolved] ")
    assert "What to do" not in message(over).text()


def test_nothing_in_a_message_acts():
    """Control characters, line ends and directions are gone; nobody is called, nothing is a link."""
    hostile = message(
        alert(HOSTILE, text=HOSTILE, remedy=HOSTILE, evidence={HOSTILE: HOSTILE}), run=HOSTILE, name=HOSTILE
    )
    assert "\n" not in hostile.title()
    for text in (hostile.title(), hostile.text(), mail_of(hostile), json.dumps(hostile.facts(0.0))):
        assert not set("\r\x1b\x00\u202e") & set(text)
    chat = inert(hostile.title() + hostile.text())
    assert not any(bad in chat for bad in ("<!channel", "<script", "@everyone", "](", "://"))


def test_html_is_escaped_and_links_lead_to_the_page_only():
    """Whatever a run is called."""
    page = message(alert(HOSTILE, text=HOSTILE, remedy=HOSTILE), run=HOSTILE, page="https://page.example.com/?a=1&b=2")
    assert "<script" not in mail_of(page)
    assert mail_of(page).count("href=") == 1
    assert 'href="https://page.example.com/?a=1&amp;b=2"' in mail_of(page)
    assert "href" not in mail_of(message(alert(text="see http://bad.example.com")))


def test_secrets_do_not_leave():
    """Tokens and passwords in names, texts and evidence are taken out, of every form of a message."""
    token = "hf_" + "a" * 34
    secret = alert(
        text=f"upload with {token} failed", evidence={"password": "hunter2", "url": "https://me:hunter2@x.y"}
    )
    found = message(secret, name=f"run {token}")
    for text in (found.title(), found.text(), mail_of(found), json.dumps(found.facts(0.0))):
        assert token not in text
        assert "hunter2" not in text


def test_the_document_of_a_webhook_is_strict_json():
    """Not even NaN is in it, and times are ISO 8601."""
    facts = json.loads(
        json.dumps(message(alert(evidence={"value": float("nan")}, time=0.5)).facts(0.0), allow_nan=False)
    )
    assert facts["alerts"][0]["evidence"] == {"value": "nan"}
    assert facts["alerts"][0]["time"] == "1970-01-01T00:00:00.500Z"
    assert facts["run"]["project"] == "mnist"


@pytest.mark.parametrize(
    "event", [{}, {"rule": None, "text": None, "evidence": 3, "rank": "x", "time": "y", "severity": 9}]
)
def test_no_event_is_too_odd(event):
    """Whatever is in it, there is a message."""
    found = message(event)
    assert found.title()
    assert found.text()
    assert mail_of(found)
    assert found.facts(0.0)
    assert len(plain("x" * 10_000)) <= 500


def test_evidence_is_written_for_people():
    """Nothing that is absent or already said, numbers as everywhere, and commands with the run's name."""
    cause = "RuntimeError: device-side assert"
    evidence = {"value": float("nan"), "threshold": None, "phase": "", "certain": True, "cause": cause}
    found = message(alert(text=f"failed: {cause}", remedy="see `stepscope show RUN`; RUN it again", evidence=evidence))
    assert "Evidence: value NaN, certain yes\n" in found.text()
    assert "see `stepscope show r1`; RUN it again" in found.text()
    assert "1970-01-01 00:00:09 UTC" in message(alert(time=9.7)).text()
