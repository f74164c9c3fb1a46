"""What the tests of both MLflow sinks share: rows with every oddity, and how MLflow's own client reads them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.mlflow.names import valid_name
from stepscope.exporters.sinks.sink import SentRow, written_name
from stepscope.exporters.sinks.table import new_sink

LARGEST = 1.7976931348623157e308
ROWS = [
    *(SentRow(0, 0, n, n, 1_795_000_000 + n / 8, {"loss": 1 / (n + 1), "train/acc": n / 7}) for n in range(40)),
    SentRow(0, 0, 40, None, 1_795_000_100.0019, {"gpu/util": 0.25, "odd é name (%)": -0.5}),
    SentRow(0, 0, 41, -3, 1_795_000_101, {"loss": math.nan, "a": math.inf, "b": -math.inf, "c": 5e-324, "d": LARGEST}),
    SentRow(0, 0, 42, 2**60, 1_795_000_102, {"big": 1e300, "x" * 300: 1.0, "../up": 2.0}),
    SentRow(3, 1, 0, 5, 1_795_000_103, {"loss": 0.125}),
    SentRow(-3, 0, 0, None, 1_795_000_104, {"gpu/util": 0.75}),
]
SAME = [
    SentRow(0, 0, 50 + n, 7, 1_795_000_200 + n / 1e5, {"same": value}) for n, value in enumerate((1.5, 1.5, 2.5, 1.5))
]
"""Four points in one millisecond, of which two differ."""


def sink_at(url, environ=None, **facts):
    return new_sink(address_of(url, **facts), {"HOME": "/nonexistent"} if environ is None else environ)


def expected(rows, prefix=""):
    """What MLflow's client should read, without duplicates."""
    found = set()
    for row in rows:
        for name, value in row.values.items():
            key = valid_name(written_name(prefix, name, row.rank))
            shown = value if math.isnan(value) else min(max(value, -LARGEST), LARGEST)
            found.add((key, math.floor(row.time * 1000), row.step or 0, repr(float(shown))))
    return sorted(found)


def read(uri, run_id):
    """What MLflow's own client reads of a run, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("mlflow_reader.py")), uri, run_id]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ})
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    found["points"] = sorted(map(tuple, found["points"]))
    return found
