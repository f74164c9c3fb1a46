from __future__ import annotations

import pytest

from tests.importers import fuzz_children


@pytest.mark.processes
@pytest.mark.parametrize("name", fuzz_children.ALL)
def test_damaged_inputs_are_read_or_refused(name, capsys):
    """Inputs of every format, damaged at random: no child crashes, takes long or much, or fails by another error."""
    assert fuzz_children.main(["--inputs", "30", "--format", name]) == 0, capsys.readouterr().out


def test_what_goes_wrong_is_found(capsys, monkeypatch):
    """A reader that fails by another error, or takes more memory than allowed, is reported with the input's number."""
    monkeypatch.setattr(fuzz_children.fuzz, "read", lambda *_: 1 // 0)
    monkeypatch.setattr(fuzz_children, "MOST_MIB", -1)
    assert fuzz_children.main(["--inputs", "2", "--first", "7", "--format", "jsonl"]) == 1
    printed = capsys.readouterr().out
    assert "8: ZeroDivisionError" in printed
    assert "7 to 8: took" in printed
