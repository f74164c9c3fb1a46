"""How a run ended is said in the same words everywhere."""

from __future__ import annotations

import pytest

from stepscope.core.endings import crash_kind, end_by_error, end_of, end_words, is_bad
from stepscope.core.remedies import crash_remedy


@pytest.mark.parametrize(
    ("state", "cause", "words"),
    [
        ("finished", "", "finished"),
        ("failed", "exit code 3", "failed: exit code 3"),
        ("killed", "killed by SIGKILL", "killed by SIGKILL"),
        ("interrupted", "Ctrl-C", "interrupted: Ctrl-C"),
    ],
)
def test_a_state_and_its_cause_are_one_sentence(state, cause, words):
    """No word is said twice."""
    assert end_words(state, cause) == words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(), "finished"),
        (SystemExit(3), "failed: exit code 3"),
        (SystemExit("no data"), "failed: exit code 1"),
        (KeyboardInterrupt(), "interrupted: Ctrl-C"),
        (ValueError("no"), "failed: ValueError: no"),
        (AssertionError(), "failed: AssertionError"),
    ],
)
def test_a_program_ends_as_its_last_exception_says(error, words):
    """The card of a run says of an exception and of an exit code what the watcher will say."""
    assert end_of(error) == words


@pytest.mark.parametrize(
    ("state", "cause", "bad"),
    [
        ("running", "", False),
        ("finished", "", False),
        ("finished", "loss is NaN", True),
        ("failed", "", True),
        ("interrupted", "Ctrl-C", False),
    ],
)
def test_what_ended_badly(state, cause, bad):
    """A run that finished with something wrong is as bad as one that failed."""
    assert is_bad(state, cause) == bad


def test_an_exception_without_a_word():
    """A failure has a cause, whatever was reported."""
    assert end_by_error("") == ("failed", "an exception that left no text")


@pytest.mark.parametrize(
    ("state", "cause", "kind"),
    [
        ("failed", "ValueError: no", ""),
        ("failed", "exit code 3", "exit"),
        ("killed", "killed by SIGKILL", "SIGKILL"),
        ("killed", "killed by SIGTERM", "signal"),
        ("killed", "killed by SIGSEGV, with a core dump", "native"),
        ("killed", "died, cause unknown", "unseen"),
        ("lost", "its watcher has said nothing for 30 s", "unseen"),
    ],
)
def test_only_a_crash_with_a_traceback_points_at_one(state, cause, kind):
    """What to do about a crash goes by what it can have left behind."""
    assert crash_kind(state, cause) == kind
    assert ("the traceback is in" in crash_remedy(state, cause)) == (kind == "")


def test_lack_of_memory_has_its_own_remedy():
    """Who was killed for memory is told about memory."""
    assert "memory" in crash_remedy("oom-killed", "out of memory: limit 60 MiB")
