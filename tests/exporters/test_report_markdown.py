from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from stepscope.reports.report_file import html_of
from stepscope.reports.report_markdown import markdown, text
from stepscope.store.reader import Past
from stepscope.store.sinks import DENIED, SinkState
from stepscope.views.report import report
from tests.exporters.recorded import make_run, tell


@given(st.text())
def test_text_of_a_run_stays_text(given_text):
    """Whatever a name holds, it ends no cell, begins no markup and has no control character."""
    found = text(given_text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_{}\[\]<>|#~!]", found)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", found)
    assert "\n" not in found


def test_logged_texts_stand_in_the_report(tmp_path):
    """Each has its name and step, and none is taken for markup."""
    folder = make_run(tmp_path)
    tell(folder, "log", values={"note": "a | *b*"})
    assert "| note | 3 | a \\| \\*b\\* |" in markdown(report(Past(folder)))


def test_sinks_stand_in_the_report(tmp_path):
    """Each has its state, its rows and the reason, as text; a run without sinks has no such section."""
    folder = make_run(tmp_path)
    past = Past(folder)
    assert "Sinks" not in markdown(report(past)) + html_of([past], report(past))
    state = {"state": DENIED, "why": "<b>no|token</b>", "behind_rows": 1234, "behind_seconds": 90.0, "sent_rows": 7}
    SinkState("node", "mlflow-0", "mlflow", **state).save(folder)
    facts = report(past)
    found = markdown(facts)
    assert r"| mlflow | denied | 1 234 rows, 1 min 30 s | 7 | 0 | \<b\>no\|token\</b\> |" in found
    assert "&lt;b&gt;no|token&lt;/b&gt;" in html_of([past], facts)
