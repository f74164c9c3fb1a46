from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.report_markdown import text


@given(st.text())
def test_text_of_a_run_stays_text(given_text):
    """Whatever a name holds, it ends no cell, begins no markup and has no control character."""
    found = text(given_text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_{}\[\]<>|#~!]", found)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", found)
    assert "\n" not in found
