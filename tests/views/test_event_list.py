"""Events and alerts for a screen."""

from __future__ import annotations

from stepscope.store.reader import Past
from stepscope.views.event_list import EventCount, alert_list, event_list, last_texts, line_of, text_list
from tests.exporters.recorded import make_run, tell


def test_events_have_a_readable_line(tmp_path):
    """The newest events come in order, each with a line; data of other views is left out unless it is asked for."""
    folder = make_run(tmp_path)
    for number in range(5):
        tell(folder, "checkpoint", text=f"saved {number}", sequence=number)
    tell(folder, "histogram", name="w", sequence=9)
    tell(folder, "gradient_layers", ratio=0.1, sequence=10)
    past = Past(folder)
    found = event_list(past, limit=2)
    assert found["total"] == 5
    assert [event["text"] for event in found["events"]] == ["saved 3", "saved 4"]
    assert event_list(past, "histogram")["total"] == 1


def test_long_fields_are_cut(tmp_path):
    """A field of a megabyte does not reach the page."""
    folder = make_run(tmp_path)
    tell(folder, "text", text="x" * 10**6, more={"deep": ["y" * 10**5]})
    (event,) = event_list(Past(folder))["events"]
    assert len(event["text"]) == 500
    assert len(str(event["data"])) < 10_000


def test_an_alert_names_its_rule():
    """The line of an alert says which rule, and in which state it is."""
    event = {"kind": "alert", "rule": "loss-nan", "state": "firing", "text": "loss is NaN"}
    assert line_of(event) == "loss-nan firing: loss is NaN"
    assert line_of({"kind": "other"}) == ""


def test_a_notification_says_what_became_of_it():
    """The channel, the outcome, the alerts it contained, and why it failed."""
    sent = {"kind": "notification", "channel": "mail", "state": "sent", "message": "alert_68b8", "alerts": ["death-1"]}
    assert line_of(sent) == "mail: sent death-1"
    assert line_of({**sent, "state": "waiting", "why": "timed out"}) == "mail: waiting death-1; timed out"
    assert line_of({**sent, "state": "ready", "alerts": None}) == "mail: ready"


def test_alerts_that_last_come_first(tmp_path):
    """One row per alert; those that last stand before those that are over."""
    folder = make_run(tmp_path)
    common = {"severity": "warning", "text": "x"}
    tell(folder, "alert", alert="a", rule="old", state="firing", sequence=1, **common)
    tell(folder, "alert", alert="b", rule="new", state="firing", sequence=2, **common)
    tell(folder, "alert", alert="b", rule="new", state="resolved", sequence=3, **common)
    found = alert_list(Past(folder))
    assert [(row["alert"], row["state"]) for row in found["alerts"]] == [("a", "firing"), ("b", "resolved")]
    assert (found["total"], found["deliveries"]) == (2, [])


def test_events_are_counted_as_they_come(tmp_path):
    """Only what was appended is read; damaged lines count and say nothing."""
    folder = make_run(tmp_path)
    count = EventCount(folder)
    count.look()
    assert (count.total, count.last) == (0, None)
    tell(folder, "alert", alert="a", rule="r", state="firing", severity="critical", text="help")
    count.look()
    assert (count.total, count.firing, count.last["text"]) == (1, {"a": "critical"}, "help")
    (file,) = (folder.path / "events").iterdir()
    with file.open("ab") as stream:
        stream.write(b'{"kind": "alert"\n[1]\n"alert"\n{"half')
    count.look()
    count.look()
    assert count.total == 4


def test_texts_are_told_by_name(tmp_path):
    """What a program logs as text is told by its name, apart from what happened, and the last of each is known."""
    folder = make_run(tmp_path)
    tell(folder, "log", values={"note": "warm\nup"}, step=3, sequence=0)
    tell(folder, "log", values={"note": "fast", "sizes": [1, 2]}, step=5, sequence=1)
    tell(folder, "log", values="broken", sequence=2)
    past = Past(folder)
    assert event_list(past)["total"] == 0
    (first, second, broken) = event_list(past, "log")["events"]
    assert first["text"] == "note: warm up"
    assert second["data"]["values"] == {"note": "fast", "sizes": "[1, 2]"}
    assert broken["text"] == ""
    oldest = text_list(past)[0]
    assert (oldest["name"], oldest["text"], oldest["step"]) == ("note", "warm\nup", 3)
    assert [(one["name"], one["text"], one["count"]) for one in last_texts(past)] == [
        ("note", "fast", 2),
        ("sizes", "[1, 2]", 1),
    ]


def test_a_long_text_is_cut_and_stays_one(tmp_path):
    """A text of a megabyte reaches the page as a text of two thousand characters, under its name."""
    folder = make_run(tmp_path)
    tell(folder, "log", values={"sample": "x" * 10**6})
    (event,) = event_list(Past(folder), "log")["events"]
    assert len(event["data"]["values"]["sample"]) == 2000
