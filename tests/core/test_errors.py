from __future__ import annotations

import pytest

from stepscope.core.errors import StepscopeError, UsageError, in_words


def test_a_message_has_three_parts():
    """An error says what cannot be done, why, and what to do; its parts stay readable."""
    error = UsageError("open run 'x'", ValueError("there is none"), "give another")
    assert str(error) == "cannot open run 'x': there is none; give another"
    assert (error.what, error.cause, error.remedy) == ("open run 'x'", "there is none", "give another")


def test_exit_codes():
    """A wrong request ends a command with 2, everything else with 1."""
    assert (StepscopeError.exit_code, UsageError.exit_code) == (1, 2)


@pytest.mark.parametrize(("most", "text"), [(500, "KeyError: 'loss'"), (8, "KeyError")])
def test_an_error_in_words(most, text):
    """The kind of an error and its text, as far as there is room."""
    assert in_words(KeyError("loss"), most) == text


def test_an_error_without_words():
    """An exception of the user's whose text cannot be made is told by its kind, and nothing is raised."""

    class MuteError(Exception):
        def __str__(self):
            raise ZeroDivisionError

    assert in_words(MuteError()) == "MuteError: (no text: ZeroDivisionError)"
