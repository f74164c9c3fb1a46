from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from stepscope.reports.report_markdown import markdown, text
from stepscope.store.reader import Past
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
