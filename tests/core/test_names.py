from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.names import CHARACTERS, EMPTY, MAX_LENGTH, NOT_TEXT, REMEDIES, TOO_LONG, UNREADABLE, clean


class Hostile:
    def __str__(self) -> str:
        msg = "no"
        raise RuntimeError(msg)


class Liar(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError(self[:1])

    def strip(self, *_: object) -> str:
        raise ValueError(self[:1])


@pytest.mark.parametrize(
    "name", ["loss", "train/loss", "../../etc/passwd", "gpu/0/power_watts", "perte é", "שלום", "损失"]
)
def test_good_names(name):
    """Printable text of any script is a name as it is; a path is only text."""
    assert clean(name) == (name, None)


@pytest.mark.parametrize(
    ("name", "cleaned", "problem"),
    [
        (3, "3", NOT_TEXT),
        (None, "None", NOT_TEXT),
        (b"loss", "loss", NOT_TEXT),
        ("a\0b", "a\ufffdb", CHARACTERS),
        ("a\u202eb", "a\ufffdb", CHARACTERS),
        ("a\ud800b", "a\ufffdb", CHARACTERS),
        ("a\nb", "a\ufffdb", CHARACTERS),
        ("  loss\n", "loss", None),
        ("", "", EMPTY),
        (" \t", "", EMPTY),
        ("   ", "", EMPTY),
        (Hostile(), "", UNREADABLE),
        (10**5000, "", UNREADABLE),
        (Liar("loss"), "loss", None),
    ],
    ids=range(14),
)
def test_bad_names(name, cleaned, problem):
    """A bad name is coerced or refused, with the kind of its problem."""
    assert clean(name) == (cleaned, problem)


def test_every_problem_has_a_remedy():
    """Each kind of problem tells what to do."""
    assert set(REMEDIES) == {NOT_TEXT, CHARACTERS, TOO_LONG, EMPTY, UNREADABLE}


def test_long_names_stay_distinct():
    """Long names are cut to the limit and those that differ past the cut stay distinct."""
    first, second = clean("x" * 2_000_000 + "1"), clean("x" * 2_000_000 + "2")
    assert len(first[0]) == len(second[0]) == MAX_LENGTH
    assert first != second
    assert first[1] == TOO_LONG


def test_limit():
    """A name of exactly the limit is kept whole."""
    assert clean("x" * MAX_LENGTH) == ("x" * MAX_LENGTH, None)


@given(st.one_of(st.text(), st.text(alphabet=st.characters()), st.binary(), st.integers(), st.floats(), st.none()))
def test_any_name(name):
    """Whatever is given, the result is short, encodable, free of controls, and clean already."""
    text, problem = clean(name)
    assert (not text) == (problem in {EMPTY, UNREADABLE})
    assert len(text) <= MAX_LENGTH
    assert "\0" not in text.encode().decode()
    assert not text or clean(text) == (text, None)


def test_many_names_are_cheap():
    """A hundred thousand distinct names are cleaned in well under a second, and in seconds on the slowest machine."""
    start = time.process_time()
    assert len({clean(f"layer/{index}/norm")[0] for index in range(100_000)}) == 100_000
    assert time.process_time() - start < 20
