"""Which points of a batch MLflow has already, where a request may have been taken without our knowing.

MLflow takes a point twice, but slowly: it searches the history of the run for each one in the request, which takes
minutes for a million points in SQLite. So we look before we send again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stepscope.exporters.sinks.mlflow.points import LARGEST
from stepscope.exporters.sinks.sink import SinkDeniesError, SinkRefusesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.exporters.sinks.mlflow.api import MlflowApi
    from stepscope.exporters.sinks.mlflow.points import StoredPoint

MOST_FOUND = 2500
"""Points that MLflow returns for one question; of more, it returns a sample."""


def split(
    api: MlflowApi, run_id: str, rows: Sequence[StoredPoint]
) -> tuple[list[StoredPoint], list[StoredPoint], list[StoredPoint]]:
    """Return points that MLflow has, those that it does not have, and those that it may have.

    MLflow keeps the newest point of each name; what is newer than that, it does not have.
    """
    run = api.get("runs/get", run_id=run_id).get("run", {})
    newest = {point[0]: point for point in map(_stored, run.get("data", {}).get("metrics", ()))}
    older: dict[str, list[StoredPoint]] = {}
    absent: list[StoredPoint] = []
    for row in rows:
        last = newest.get(row[0])
        if last is None or (row[2], row[1], row[3]) > (last[2], last[1], last[3]):
            absent.append(row)
        else:
            older.setdefault(row[0], []).append(row)
    present: list[StoredPoint] = []
    unclear: list[StoredPoint] = []
    for key, points in older.items():
        found, is_all = _history(api, run_id, key, [point[2] for point in points])
        for point in points:
            (present if point in found else absent if is_all else unclear).append(point)
    return present, absent, unclear


def _history(api: MlflowApi, run_id: str, key: str, steps: Iterable[int]) -> tuple[set[StoredPoint], bool]:
    """Return points of a name between the first and last of some steps, and whether these are all."""
    span = sorted(steps)
    asked = {"run_ids": run_id, "metric_key": key, "start_step": str(span[0]), "end_step": str(span[-1])}
    try:
        found = api.get("metrics/get-history-bulk-interval", **asked, max_results=str(MOST_FOUND)).get("metrics", ())
    except (SinkDeniesError, SinkRefusesError):
        return set(), False  # an old MLflow cannot be asked: the points are sent, a few at a time
    return set(map(_stored, found)), len(found) < MOST_FOUND


def _stored(metric: Mapping[str, Any]) -> StoredPoint:
    value = float(metric.get("value", 0.0))
    is_nan = math.isnan(value)
    kept = 0.0 if is_nan else min(max(value, -LARGEST), LARGEST)
    return str(metric["key"]), int(metric.get("timestamp", 0)), int(metric.get("step", 0)), kept, is_nan
