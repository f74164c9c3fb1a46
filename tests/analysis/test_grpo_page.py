from __future__ import annotations

import re
from pathlib import Path

from stepscope.analysis.diagnosis import grpo

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "grpo.md"


def test_every_kind_is_documented():
    """The table of docs/reference/grpo.md has every kind of finding, and no other; each has a remedy."""
    rows = re.findall(
        r"^\| `(\w+)` \| (?!all|mean|standard|groups|for)", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(rows) >= grpo.KINDS.keys() == grpo.REMEDIES.keys()
