"""Promises are counted from the markers of tests."""

from __future__ import annotations

import pytest

import promises

LIST = """# Promises
### S0.1 First
- [ ] S0-001 one
- [ ] S0-002 two
### S0.2 Second
- [ ] S0-003 three
## Conflicts
- [ ] X-01 both
"""


@pytest.fixture
def count(tmp_path, capsys):
    """Return a function that writes a test file, counts, and returns exit code and output."""
    (tmp_path / "list.md").write_text(LIST)
    (tmp_path / "tests").mkdir()

    def run(text, *options):
        (tmp_path / "tests" / "test_a.py").write_text(text)
        code = promises.main(["--root", str(tmp_path), "--list", str(tmp_path / "list.md"), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_proved_and_open_are_told_apart(count):
    """A marked promise is proved by its test, the others are open."""
    code, out, _ = count('@pytest.mark.promise("S0-001", "X-01")\ndef test_x(): ...\n')
    assert code == 0
    assert "proved S0-001  one\n         tests/test_a.py::test_x" in out
    assert "open   S0-002  two" in out
    assert "2 of 4 promises proved, 2 open" in out


@pytest.mark.parametrize(
    "text",
    [
        'class TestA:\n    @pytest.mark.promise("S0-001")\n    def test_x(self): ...\n',
        'pytestmark = [pytest.mark.promise("S0-001")]\n',
        '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.promise("S0-001"))])\ndef test_x(x): ...\n',
    ],
)
def test_markers_are_found_wherever_they_are(count, text):
    """A marker counts on a method, on a module and on a parameter."""
    assert "1 of 4 promises proved" in count(text)[1]


def test_unknown_ids_are_an_error(count):
    """A marker whose id is not in the list fails."""
    code, _, err = count('@pytest.mark.promise("S0-009")\ndef test_x(): ...\n')
    assert code == 1
    assert "tests/test_a.py::test_x: no promise has the id 'S0-009'" in err


def test_computed_ids_are_an_error(count):
    """A marker whose id cannot be read from the source fails."""
    assert count("@pytest.mark.promise(x)\ndef test_x(): ...\n")[0] == 1


@pytest.mark.parametrize(("ids", "code"), [("S0-001", 0), ("S0.1", 1), ("S0-001-S0-002", 1), ("S0-001, X-01", 1)])
def test_check_fails_while_one_is_open(count, ids, code):
    """--check takes ids, ranges and sections, and fails while one of them is open."""
    assert count('@pytest.mark.promise("S0-001")\ndef test_x(): ...\n', "--check", ids)[0] == code
