"""When steps ended, found in drained records."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.columns import SchemaTable
from stepscope.core.records import NO_STEP, RECORD, SCHEMA_EVENT, SCHEMA_PAIRS
from stepscope.watcher.steps import LAST_ROWS, StepTimes, StepTracker

S = 10**9
STEP, ROW, OWN = 16, 17, 18


def record(schema, moment, step=NO_STEP, layout="", *values):
    """Return one record of a ring."""
    body = struct.pack(f"<{layout}", *values)
    body += bytes(-len(body) % 8)
    return RECORD.pack(RECORD.size + len(body), schema, 0, moment, step) + body


def steps_of(*records):
    """Return the steps of a run with three kinds of rows, after these records."""
    table = SchemaTable()
    table.add({"id": STEP, "names": ["step_seconds", "phase/other"], "kinds": "qq"})
    table.add({"id": ROW, "names": ["loss"], "kinds": "d"})
    table.add({"id": OWN, "names": ["step_seconds"], "kinds": "d"})
    table.add({"first": 0, "names": ["loss", "step_seconds"]})
    steps = StepTracker(table)
    steps.add([b"".join(records)])
    return steps


def test_rows_of_steps_are_told_from_other_rows():
    """Only the recorder's own row ends a step; a column of that name that the user logs does not, nor an event."""
    steps = steps_of(
        record(ROW, 1 * S, 0, "d", 0.5),
        record(STEP, 9 * S, 0, "qq", 2 * S, 2 * S),
        record(OWN, 10 * S, 0, "d", 3.0),
        record(SCHEMA_EVENT, 11 * S, 0, "8s", b"{}"),
        record(STEP, 12 * S, 1, "qq", 3 * S, 3 * S),
        record(99, 13 * S, 0, "d", 1.0),
    )
    assert steps.take_times() == StepTimes([9 * S, 12 * S], [1 * S, 10 * S, 13 * S], began=7 * S)
    assert steps.take_times() == StepTimes([], [])


def test_steps_written_as_pairs_are_found():
    """A run with very many names writes its steps as pairs."""
    steps = steps_of(
        record(SCHEMA_PAIRS, 5 * S, 0, "Qd", 1, 2.0),
        record(SCHEMA_PAIRS, 6 * S, 0, "Qd", 0, 2.0),
        record(SCHEMA_PAIRS, 7 * S, 0, "Qd", 9, 2.0),
    )
    assert steps.take_times() == StepTimes([5 * S], [6 * S, 7 * S], began=3 * S)


def test_the_last_rows_are_kept_with_their_step():
    """Durations are seconds, what JSON cannot hold is None, and old rows make room."""
    rows = [record(ROW, n, n, "d", float(n)) for n in range(50)]
    steps = steps_of(*rows, record(STEP, 60, 7, "qq", S // 2, S), record(ROW, 61, NO_STEP, "d", float("nan")))
    last = steps.last_rows()
    assert len(last) == LAST_ROWS
    assert last[-2:] == [{"step": 7, "step_seconds": 0.5, "phase/other": 1.0}, {"step": None, "loss": None}]


@given(st.lists(st.tuples(st.sampled_from([STEP, ROW, OWN, 1, 3, 99]), st.binary(min_size=16, max_size=32))))
def test_any_values_are_survived(found):
    """Whatever bits a record holds, there are times and rows."""
    records = [
        RECORD.pack(RECORD.size + len(body) // 8 * 8, schema, 0, 5, 5) + body[: len(body) // 8 * 8]
        for schema, body in found
    ]
    steps = steps_of(*records)
    assert len(steps.take_times().steps) <= len(records)
    assert len(steps.last_rows()) <= LAST_ROWS
