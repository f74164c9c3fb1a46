"""The export of a `TrainingLogger`: its raw values with their steps and times, and its summaries as facts."""

from __future__ import annotations

import json
import math
from typing import Any

from stepscope.importers.own_export import add_point
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, document
from stepscope.importers.words import moment

SUMMARIES = ("experiment_name", "metric_summaries", "score_distribution")


def recognises(head: FileHead) -> bool:
    """Return whether a file is a document with an experiment's name and raw values or summaries."""
    if head.data.lstrip()[:1] != b"{" or b'"experiment_name"' not in head.data:
        return False
    try:
        return b'"raw_metrics"' in head.data or "metric_summaries" in json.loads(head.text)
    except (ValueError, RecursionError):
        return False


def fill(path: str, run: RunBuilder) -> None:
    """Read an export."""
    content = _of_type(document(path), dict)
    times, steps = (_of_type(content.get(key), dict) for key in ("raw_times", "raw_steps"))
    for name, values in _of_type(content.get("raw_metrics"), dict).items():
        if not isinstance(values, list):
            run.note("metrics without a list of values, left out")
            continue
        known = _of_type(steps.get(name), list) or list(range(len(values)))
        when = _of_type(times.get(name), list) or [None] * len(values)
        for seq, (value, step, time) in enumerate(zip(values, known, when, strict=False)):
            try:
                figure = math.nan if value is None else float(value)
                add_point(run, str(name), 0, 0, seq, None if step is None else int(step), moment(time), figure)
            except (ValueError, TypeError, OverflowError):
                run.note("values that are no number, left out")
    run.facts["name"] = str(content.get("experiment_name") or "")
    run.facts.update({key: content[key] for key in SUMMARIES if key in content})


def _of_type(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else kind()


FORMAT = ImportFormat("training_logger", "a TrainingLogger's export", recognises, fill, is_ours=True, reads_on=False)
