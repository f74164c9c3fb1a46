"""The values and names that `log` accepts and refuses."""

from __future__ import annotations

import decimal
import enum
import fractions
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.recorder import intake as intake_module
from tests.recorder.rig import Rig


def logged(rig):
    """Return the one value of each row."""
    return [next(iter(row.values())) for _, row in rig.rows()]


class Colour(enum.IntEnum):
    RED = 3


class Own:
    def __float__(self):
        return 0.25


NUMPY = [np.dtype(code).type(3) for code in "?bhilqBHILQefdg"]


@pytest.mark.parametrize(
    "value",
    [
        *(1.5, 3, True, False, Colour.RED, Own(), decimal.Decimal("0.1"), fractions.Fraction(1, 3)),
        *(math.nan, math.inf, -math.inf, 5e-324, -0.0, 2**60, 2**80, decimal.Decimal("1e400")),
        *NUMPY,
        *(np.array(2.5), np.array([2.5]), np.array([[7]]), np.float64(1.25), np.array(True)),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r:.20}",
)
def test_numbers(rig, value):
    """Every kind of real number is recorded as the float it is, the second time as well as the first."""
    true = float(value.item() if isinstance(value, np.ndarray) else value)
    rig.run.log({"a": 0.0})
    rig.run.log({"a": value})
    rig.run.log({"a": value})
    assert [struct.pack("d", found) for found in logged(rig)[1:]] == [struct.pack("d", true)] * 2
    assert (rig.refused, rig.complaints()) == (0, {})


class Furious:
    def __float__(self):
        raise MemoryError("no")

    def __repr__(self):
        raise ValueError("no repr either")


class Ghost:
    """A lazy proxy that finds nothing behind it."""

    @property
    def __class__(self):
        raise RuntimeError("outside of its context")


class MuteError(Exception):
    def __str__(self):
        raise KeyError("no text")

    __repr__ = __str__


class Silent:
    def __float__(self):
        raise MuteError


REFUSED = [
    *(None, b"bytes", bytearray(b"x"), [1.0], (1, 2), {1}, object(), 1j, Furious(), Ghost, Silent()),
    *(np.array([1.0, 2.0]), np.array([]), np.complex64(1), np.complex128(1), np.array(1j)),
    *(np.datetime64("2020-01-01"), np.timedelta64(5, "s"), np.array("text"), np.array(object())),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_is_no_number(rig, value):
    """What is no real number is refused, counted each time, told once, and costs no other value of the call."""
    value = Ghost() if value is Ghost else value  # pytest itself cannot handle one
    for _ in range(3):
        rig.run.log({"bad": value, "good": 1.0})
    assert [row for _, row in rig.rows()] == [{"good": 1.0}] * 3
    assert (rig.refused, rig.complaints()) == (3, {"value": 3})
    assert rig.said.getvalue().startswith("stepscope: cannot log 'bad': ")
    assert rig.said.getvalue().count("\n") == 1


def test_huge_integers(rig):
    """An integer beyond the floats costs itself and not its row, known layout or not, and is counted."""
    rig.run.log({"a": 10**400})
    rig.run.log({"a": 1})
    rig.run.log({"a": 10**400})
    rig.run.log({"a": 2, "b": -(10**400)})
    assert rig.rows() == [(0, {"a": 1.0}), (1, {"a": 2.0})]
    assert (rig.refused, rig.complaints()) == (3, {"value": 3})


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.floats() | st.integers(-(2**70), 2**70) | st.booleans())))
def test_floats_keep_their_bits(tmp_path_factory, rows):
    """Any row of floats comes back bit by bit, NaN with whatever payload included."""
    rig = Rig(tmp_path_factory.mktemp("ring"), 1 << 20)
    for row in rows:
        rig.run.log(row)
    found = [{name: struct.pack("d", value) for name, value in row.items()} for _, row in rig.rows()]
    assert found == [{name: struct.pack("d", value) for name, value in row.items()} for row in rows if row]
    rig.close()


def test_text_becomes_an_event(rig):
    """Strings and dicts go to events, with the step of the row they came with."""
    rig.run.log({"a": 1.0, "note": "warm-up done", "cfg": {"lr": 0.1}})
    rig.run.log({"note": "again"})
    rig.run.log({"a": 2.0})
    assert rig.events() == [
        (0, {"kind": "log", "values": {"note": "warm-up done", "cfg": {"lr": 0.1}}}),
        (1, {"kind": "log", "values": {"note": "again"}}),
    ]
    assert rig.rows() == [(0, {"a": 1.0}), (2, {"a": 2.0})]


def test_text_beside_a_refused_number(rig):
    """Text keeps the step of its call when the numbers of the call could not be written."""
    rig.run.log({"a": 10**400, "note": "x"})
    assert [step for step, _ in rig.events()] == [0]


def test_secrets_in_text(rig):
    """A secret in a logged text is redacted before it reaches the ring."""
    rig.run.log({"cfg": {"api_key": "sk-1234567890abcdef1234567890abcdef"}})
    assert b"sk-1234567890" not in rig.path.read_bytes()


@pytest.mark.parametrize("ring_bytes", [1 << 18, 1 << 22])
@pytest.mark.parametrize("kind", ["log", "\U0001f600" * 100, '"' * 100], ids=["plain", "wide", "escaped"])
def test_long_text_is_cut(tmp_path, ring_bytes, kind):
    """A text of a megabyte is cut to what a record holds, is still JSON, and is told once."""
    rig = Rig(tmp_path, ring_bytes)
    for text in ("a" * 2**20, '"\\' * 2**19, "\U0001f600" * 2**18):
        rig.run.event(kind, parts=[text[at : at + 4000] for at in range(0, 2**17, 4000)])
    rig.run.log({"a": 1.0})
    events = rig.events()
    assert len(events) == 3
    assert all(event["cut"] and len(event["text"]) > 1000 for _, event in events)
    assert logged(rig) == [1.0]
    assert (rig.refused, rig.complaints()) == (0, {"text": 3})


@pytest.mark.promise("S1-058")
def test_event_rate(tmp_path, ticks):
    """More events a second than allowed are dropped and counted; the next second they are taken again."""
    rig = Rig(tmp_path, max_events=3)
    for second in (10, 11):
        ticks[0] = second * 1_000_000_000
        for number in range(5):
            rig.run.log({"note": f"{second}.{number}"})
    assert [event["values"]["note"] for _, event in rig.events()] == ["10.0", "10.1", "10.2", "11.0", "11.1", "11.2"]
    assert (rig.refused, rig.complaints()) == (4, {"events": 4})


def test_event_says_its_step(rig):
    """An event takes the current step, or the one it is given."""
    with rig.run.step():
        rig.run.event("checkpoint", path="x")
        rig.run.event("checkpoint", step=77)
        rig.run.event("checkpoint", step="odd")
    rig.run.event("after")
    assert [(step, event["kind"]) for step, event in rig.events()] == [
        *((0, "checkpoint"), (77, "checkpoint"), (0, "checkpoint")),
        (0, "after"),
    ]


class Listless:
    def keys(self):
        raise OSError("gone")


@pytest.mark.parametrize(
    "values",
    [5, "text", [1, 2], [("a",)], Listless(), np.zeros(3)],
    ids=["int", "text", "list", "pairs", "listless", "array"],
)
def test_calls_that_give_no_dict(rig, values):
    """A call with something else than names and values is refused, counted, and keeps its keywords."""
    rig.run.log(values)
    rig.run.log(values, b=2.0)
    assert [row for _, row in rig.rows()] == [{"b": 2.0}]
    assert (rig.refused, rig.complaints()) == (2, {"call": 2})


def test_calls_that_give_nothing(rig):
    """A call without a value records nothing and moves nothing."""
    rig.run.log()
    rig.run.log({})
    rig.run.log(None, step=3)
    rig.run.log({"a": 1.0})
    assert rig.rows() == [(0, {"a": 1.0})]
    assert rig.complaints() == {}


def test_pairs_and_mappings_are_dicts_too(rig):
    """Pairs, and dicts of any kind, are taken like a dict."""
    rig.run.log([("a", 1.0), ("b", 2.0)])
    rig.run.log(dict.fromkeys("a", 3.0).items(), c=4.0)
    assert [row for _, row in rig.rows()] == [{"a": 1.0, "b": 2.0}, {"a": 3.0, "c": 4.0}]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        (7, "7"),
        (b"loss", "loss"),
        ((1, 2), "(1, 2)"),
        ("a\0b", "a\ufffdb"),
        ("../../etc", "../../etc"),
        ("\ud800x", "\ufffdx"),
        ("\u202eevil", "\ufffdevil"),
        (" loss ", "loss"),
    ],
)
def test_odd_names(rig, name, kept):
    """A name is cleaned to text that is safe to show; the value is kept."""
    rig.run.log({name: 1.0})
    rig.run.log({name: 2.0})
    assert [row for _, row in rig.rows()] == [{kept: 1.0}, {kept: 2.0}]
    assert rig.refused == 0
    assert rig.said.getvalue().count("\n") <= 1


class Nameless:
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("name", ["", "   ", Nameless()], ids=["empty", "blank", "raises"])
def test_names_that_are_none(rig, name):
    """A value without a usable name is refused and counted, and costs no other value."""
    rig.run.log({name: 1.0, "a": 2.0})
    assert [row for _, row in rig.rows()] == [{"a": 2.0}]
    assert rig.refused == 1


def test_long_names_stay_distinct(rig):
    """Names of a megabyte are cut, and differ as they did."""
    rig.run.log({"x" * 2**20 + tail: 1.0 for tail in "ab"})
    [(_, row)] = rig.rows()
    assert len(row) == 2
    assert all(len(name) <= 256 for name in row)


def test_names_that_come_to_the_same(rig):
    """Of two names that are cleaned to one the first is kept, and the other is counted, not lost unseen."""
    rig.run.log({"a": 1.0, " a": 2.0, "a ": "text"})
    assert [row for _, row in rig.rows()] == [{"a": 1.0}]
    assert (rig.refused, rig.complaints()) == (2, {"name-twice": 2})


def test_status_of_the_watcher_is_told_once(rig, ticks, capsys):
    """What the watcher reports is printed by the next log after a second, once."""
    from stepscope.core import ring, status

    rig.run.log({"a": 1})
    rig.reader.set_word(ring.WORD_STATUS, status.DISK_FULL)
    for _ in range(3):
        ticks[0] += intake_module.LOOK_EVERY + 1
        rig.run.log({"a": 1})
    rig.reader.set_word(ring.WORD_STATUS, 99)  # of a later version: nothing to say
    ticks[0] += intake_module.LOOK_EVERY + 1
    rig.run.log({"a": 1})
    assert capsys.readouterr().err == f"stepscope: {status.MESSAGES[status.DISK_FULL]}\n"


def test_watcher_is_looked_after(rig, ticks):
    """About once a second the recorder looks at the watcher's heartbeat."""
    seen = []
    rig.intake.on_look = lambda heartbeat, now: seen.append((heartbeat, now))
    for _ in range(4):
        ticks[0] += intake_module.LOOK_EVERY // 2 + 1
        rig.run.log({"a": 1})
    assert len(seen) == 2
