"""The error check refuses messages that do not say what, why and what to do."""

from __future__ import annotations

import pytest

import check_errors


@pytest.fixture
def check(tmp_path, capsys):
    """Return a function that puts text into a module of a room and returns the findings."""

    def run(text, room="store"):
        path = tmp_path / "src" / "stepscope" / room / "a.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"class UsageError(StepscopeError): ...\n{text}")
        check_errors.main([str(tmp_path)])
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    "text",
    [
        'raise StepscopeError(f"open run {name!r}", error, "give a path or an id")',
        'raise UsageError(what="read it now", cause="it is gone", remedy=remedy)',
        'raise StepscopeError(what, cause, f"{command} shows them")',
        "raise StepscopeError(*parts)",
        "raise",
        "raise error",
        'raise ValueError(f"expected 4 bytes, got {n}")',
        'class BadFooter(ValueError): ...\nraise BadFooter("no magic")',
        "raise _Lapped(3)",
        "def __getattr__(name):\n    raise AttributeError(name)",
    ],
)
def test_good_errors_pass(check, text):
    """Errors that say all three parts pass, and so do re-raising, decoding errors and Python's own protocols."""
    assert check(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('raise StepscopeError("open run")', "gives no cause, remedy"),
        ('raise StepscopeError("cannot open run", "gone", "look")', 'says "cannot"'),
        ('raise UsageError("Open run", "gone", "look")', "lower-case verb"),
        ('raise UsageError("run", "gone", "look")', "lower-case verb"),
        ('raise UsageError("open run", "", "look")', "`cause` is empty"),
        ('raise UsageError("open run", "gone", "")', "`remedy` starts with ''"),
        ('raise UsageError("open run", "gone", "Look there")', "`remedy` starts with 'Look there'"),
        ('raise RuntimeError("gone")', "raises RuntimeError"),
        ("raise ValueError()", "without a message"),
        ('class Lost(UsageError): pass\nraise Lost("open run")', "Lost gives no cause, remedy"),
    ],
)
def test_bad_errors_are_refused(check, text, problem):
    """A missing part, a part in the wrong form, or another exception in a room that speaks to people is refused."""
    assert problem in check(text)


def test_errors_that_build_their_own_message(check):
    """A subclass with its own constructor is checked where it calls the base, not where it is raised."""
    text = "class Lost(StepscopeError):\n    def __init__(self, n):\n        super().__init__({})\nraise Lost(3)\n"
    assert check(text.format('"open run", n, "look"')) == ""
    assert "gives no remedy" in check(text.format('"open run", n'))


def test_other_rooms_may_raise_what_they_like(check):
    """Only rooms that speak to people are held to the family."""
    assert check('raise RuntimeError("gone")', room="recorder") == ""
