from __future__ import annotations

import struct

import pytest

from stepscope.core.columns import RowSchema, SchemaTable
from stepscope.core.records import NO_STEP, RECORD, SCHEMA_PAIRS
from stepscope.exporters.prometheus.feed import RankReader


def record(schema, step, layout, *values):
    body = struct.pack(f"<{layout}", *values)
    return RECORD.pack(RECORD.size + len(body), schema, 0, 0, step) + body


@pytest.fixture
def table():
    made = SchemaTable()
    for schema in (
        RowSchema(16, ("loss", "lr"), "dd"),
        RowSchema(17, ("step_seconds", "phase/data"), "qq"),
        RowSchema(18, ("batch_time",), "d"),
    ):
        made.schemas[schema.id] = schema
    made.names = ["a", "step_seconds"]
    return made


def test_rows_give_newest_values_and_every_duration(table):
    """Of many rows the newest value of each name and the duration of every step are taken, in seconds."""
    pieces = [
        record(16, 0, "dd", 2.0, 0.1) + record(17, 0, "qq", 10**9, 5 * 10**8),
        record(16, 1, "dd", 1.0, 0.1) + record(17, 1, "qq", 2 * 10**9, 10**8) + record(99, 1, "d", 1.0),
    ]
    taken = RankReader().read(pieces, table)
    assert taken.values == {"loss": 1.0, "lr": 0.1, "step_seconds": 2.0, "phase/data": 0.1}
    assert (taken.steps, taken.step_seconds) == (2, [1.0, 2.0])


def test_steps_are_counted_without_step_calls(table):
    """In a run that never calls step() the numbers of its rows count the steps, and a logged batch_time times them."""
    rows = RankReader()
    first = rows.read([record(16, 100, "dd", 1.0, 0.1) + record(18, 100, "d", 0.5)], table)
    second = rows.read([record(16, 110, "dd", 1.0, 0.1), record(16, 5, "dd", 1.0, 0.1)], table)
    third = rows.read([record(16, NO_STEP, "dd", 1.0, 0.1)], table)
    assert [(taken.steps, taken.step_seconds) for taken in (first, second, third)] == [(1, [0.5]), (10, []), (0, [])]


def test_own_durations_take_over(table):
    """From the first step that the recorder timed on, durations that the program logs are not counted beside it."""
    pieces = [record(18, 0, "d", 9.0) + record(17, 0, "qq", 10**9, 0) + record(18, 1, "d", 9.0)]
    assert RankReader().read(pieces, table).step_seconds == [1.0]


def test_rows_of_pairs(table):
    """Rows of (name, value) pairs are read too, with and without a checksum at their end."""
    rows = RankReader()
    pair = record(SCHEMA_PAIRS, 0, "QdQdQd", 0, 4.0, 1, 0.25, 77, 1.0)
    taken = rows.read([pair], table)
    assert (taken.values, taken.steps, taken.step_seconds) == ({"a": 4.0, "step_seconds": 0.25}, 1, [0.25])
    checked = record(SCHEMA_PAIRS, 0, "QdQ", 0, 5.0, 0)
    assert rows.read([checked], table, checked=True).values == {"a": 5.0}
