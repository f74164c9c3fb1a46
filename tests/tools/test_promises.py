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

    def run(text, *options, outcome="", name="test_x"):
        (tmp_path / "tests" / "test_a.py").write_text(text)
        (tmp_path / "report.xml").write_text(
            f'<testsuites><testsuite><testcase classname="tests.test_a" name="{name}">{outcome}</testcase>'
            '<testcase classname="tests.test_a.TestA" name="test_x"/></testsuite></testsuites>'
        )
        files = ["--list", str(tmp_path / "list.md"), "--report", str(tmp_path / "report.xml")]
        code = promises.main(["--root", str(tmp_path), *files, *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_proved_and_open_are_told_apart(count):
    """A marked promise is proved by its test, the others are open."""
    code, out, _ = count('@pytest.mark.promise("S0-001", "X-01")\ndef test_x(): assert f()\n')
    assert code == 0
    assert "proved S0-001  one\n         tests/test_a.py::test_x" in out
    assert "open   S0-002  two" in out
    assert "2 of 4 promises proved, 2 open" in out


@pytest.mark.parametrize(
    "text",
    [
        'class TestA:\n    @pytest.mark.promise("S0-001")\n    def test_x(self): assert f()\n',
        'pytestmark = [pytest.mark.promise("S0-001")]\ndef test_x(): assert f()\n',
        (
            '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.promise("S0-001"))])\n'
            "def test_x(x): assert f(x)\n"
        ),
    ],
)
def test_markers_are_found_wherever_they_are(count, text):
    """A marker counts on a method, on a module and on a parameter."""
    assert "1 of 4 promises proved" in count(text)[1]


def test_unknown_ids_are_an_error(count):
    """A marker whose id is not in the list fails."""
    code, _, err = count('@pytest.mark.promise("S0-009")\ndef test_x(): assert f()\n')
    assert code == 1
    assert "tests/test_a.py::test_x: no promise has the id 'S0-009'" in err


def test_computed_ids_are_an_error(count):
    """A marker whose id cannot be read from the source fails."""
    assert count("@pytest.mark.promise(x)\ndef test_x(): assert f()\n")[0] == 1


@pytest.mark.parametrize(("ids", "code"), [("S0-001", 0), ("S0.1", 1), ("S0-001-S0-002", 1), ("S0-001, X-01", 1)])
def test_check_fails_while_one_is_open(count, ids, code):
    """--check takes ids, ranges and sections, and fails while one of them is open."""
    assert count('@pytest.mark.promise("S0-001")\ndef test_x(): assert f()\n', "--check", ids)[0] == code


MARKED = '@pytest.mark.promise("S0-001")\n'


@pytest.mark.parametrize("outcome", ["<skipped/>", '<skipped type="pytest.xfail"/>', "<failure/>", "<error/>"])
def test_a_test_that_did_not_pass_proves_nothing(count, outcome):
    """A test that was skipped, expected to fail or failed leaves its promise open, and is listed."""
    out = count(f"{MARKED}def test_x(): assert f()\n", outcome=outcome)[1]
    assert "open   S0-001" in out
    assert "test_x: does not count" in out


def test_a_test_that_did_not_run_proves_nothing(count):
    """A marked test that is not in the report leaves its promise open."""
    assert "0 of 4 promises proved" in count(f"{MARKED}def test_x(): assert f()\n", name="test_y")[1]


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("f()", False),
        ("assert f()", True),
        ("pytest.raises(ValueError, f)", True),
        ("rig.checked()", True),
        ("subprocess.run([], check=True)", True),
        ("subprocess.run([], check=False)", False),
    ],
)
def test_a_test_that_cannot_fail_proves_nothing(count, body, counts):
    """A test counts if it asserts, or calls a function of the tests that does."""
    text = f"{MARKED}def test_x(rig):\n    {body}\n\nclass Rig:\n    def checked(self):\n        assert g()\n"
    assert ("1 of 4 promises proved" in count(text)[1]) is counts


def test_a_case_that_passed_is_enough(count):
    """A parametrised test proves its promise if one of its cases passed."""
    assert "1 of 4 promises proved" in count(f"{MARKED}def test_x(x): assert f(x)\n", name="test_x[1-a]")[1]


def test_without_a_test_run_nothing_is_counted(tmp_path, capsys):
    """Without a report of a test run the command fails and names the one that writes it."""
    assert promises.main(["--root", str(tmp_path)]) == 1
    assert "run `make test`" in capsys.readouterr().err


def test_markers_can_be_checked_before_any_test_run(tmp_path, capsys):
    """--markers needs no report: it fails for an unknown id, and counts nothing."""
    (tmp_path / "list.md").write_text(LIST)
    (tmp_path / "tests").mkdir()
    options = ["--root", str(tmp_path), "--list", str(tmp_path / "list.md"), "--markers"]
    for name, code in (("S0-001", 0), ("S0-009", 1)):
        (tmp_path / "tests" / "test_a.py").write_text(f'@pytest.mark.promise("{name}")\ndef test_x(): assert f()\n')
        assert promises.main(options) == code
    assert capsys.readouterr().out == ""
