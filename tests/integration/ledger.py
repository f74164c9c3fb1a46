"""The kill recipe: a trainer notes each row in a ledger after `log` returned for it; the reader must have them all."""

from __future__ import annotations

import struct
from pathlib import Path

import stepscope

TRAINER = """
    import os, sys, time
    import stepscope

    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pause, settings = float(sys.argv[2]), eval(sys.argv[3])
    run = stepscope.init(project="ledger", **settings)
    print(run.path, flush=True)
    step = 0
    while True:
        run.log({"half": step / 2, "minus": -step, "third": step / 3})
        os.write(ledger, step.to_bytes(8, "little"))
        step += 1
        if pause:
            time.sleep(pause)
"""


def noted(path):
    """Return how many rows the ledger acknowledges."""
    data = Path(path).read_bytes()
    rows = struct.unpack(f"<{len(data) // 8}q", data[: len(data) // 8 * 8])
    assert rows == tuple(range(len(rows)))
    return len(rows)


def compare(ledger, path):
    """Check that no acknowledged row is lost, none is there twice, and every value is what was logged."""
    count = noted(ledger)
    past = stepscope.open(path)
    for name, value in (
        ("half", lambda step: step / 2),
        ("minus", lambda step: -step),
        ("third", lambda step: step / 3),
    ):
        series = past.series(name)
        assert series.step.tolist() == list(range(len(series)))
        assert series.value.tolist() == [value(step) for step in range(len(series))]
        assert count <= len(series) <= count + 1, "only the row being logged at the kill may be there unacknowledged"
    assert past.problems() == []
    return past
