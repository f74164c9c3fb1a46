"""Batches and runs for the tests of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.exporters.sinks.sink import RunFacts, SinkBatch
from stepscope.store.points import NO_NS, Points

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.exporters.sinks.sink import SentRow

RUN = RunFacts(
    id="20261118-120000-abcd",
    project="mnist",
    name="first try",
    created=1_795_000_000.25,
    path="/tmp/stepscope-runs/mnist/20261118-120000-abcd",
    config={"lr": 3e-4, "model": {"layers": 4, "name": "mlp"}, "tags": ["a", "b"]},
    tags=("baseline", "gpu"),
    notes="the first",
    group="seeds",
    host="node7",
    commit="0123456789abcdef",
    page="http://localhost:8080/run/mnist/20261118-120000-abcd",
)


def batch_of(rows: Iterable[SentRow]) -> SinkBatch:
    """Return a batch with these rows."""
    names: dict[str, int] = {}
    columns: list[list[float]] = []
    for row in rows:
        for name, value in row.values.items():
            step = NO_STEP if row.step is None else row.step
            code = names.setdefault(name, len(names))
            columns.append([code, row.rank, row.attempt, row.seq, step, round(row.time * 1e6), value])
    found = list(zip(*columns, strict=True)) if columns else [()] * 7
    integers = [np.array(column, np.int64) for column in found[:6]]
    return SinkBatch(
        Points(
            list(names),
            *(column.astype(np.int32) for column in integers[:3]),
            *integers[3:],
            np.array(found[6], np.float64),
            np.full(len(columns), NO_NS, np.int64),
        )
    )
