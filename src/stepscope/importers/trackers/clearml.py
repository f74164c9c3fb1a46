"""Offline sessions of ClearML, as a folder or its zip: `task.json`, and lines of JSON lists of events.

Iterations are as written: ClearML asks for the offset of a continued task when it loads a session. For NaN and infinity
it has written 0.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import MOST_DOCUMENT_BYTES, document, goes_on
from stepscope.importers.trackers.archive import has_members, member_document, member_lines
from stepscope.importers.trackers.growing import GrowingFile, start_of
from stepscope.importers.trackers.json_text import decoded
from stepscope.importers.trackers.mlflow_facts import written
from stepscope.importers.words import moment, number, whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import FileHead

TASK, METRICS, LOG = "task.json", "metrics.jsonl", "log.jsonl"
SCALAR = "training_stats_scalar"
NO_ITERATION = -(2**31)
"""Iteration of a single value."""
SECTION = "General"
"""Settings that a script connects without a name for them."""


def recognises(head: FileHead) -> bool:
    """Return whether a file is the zip of an offline session."""
    return has_members(head, {TASK, LOG}) or has_members(head, {TASK, METRICS})


def owns_folder(folder: str, names: Collection[str]) -> bool:
    """Return whether a folder is an offline session; the ids of their tasks begin with `offline`."""
    return TASK in names and bool({METRICS, LOG} & {*names}) and b'"offline' in start_of(os.path.join(folder, TASK))


def fill(path: str, run: RunBuilder) -> None:
    """Read the scalars of a session, the task's settings, and its time and host by the first line of its console."""
    if not os.path.isdir(path):
        _describe(run, member_document(path, TASK, run.note))
        _add_lines(run, chain.from_iterable(member_lines(path, METRICS, run.note)))
        _add_start(run, next(chain.from_iterable(member_lines(path, LOG, run.note)), b""))
        return
    metrics, log = (GrowingFile(os.path.join(path, name), MOST_DOCUMENT_BYTES) for name in (METRICS, LOG))
    while True:
        _describe(run, _task(os.path.join(path, TASK), run))
        if os.path.exists(metrics.path):
            _add_lines(run, chain.from_iterable(metrics.new_lines(run.note)))
        if os.path.exists(log.path):
            _add_start(run, next(chain.from_iterable(log.new_lines(run.note)), b""))
        if not goes_on():
            break
    if metrics.is_cut:
        run.note(f"the last line of {METRICS} is cut, left out")


def _task(path: str, run: RunBuilder) -> dict[str, Any]:
    try:
        found = document(path)
    except StepscopeError as error:
        run.note(str(error))
        return {}
    return found if isinstance(found, dict) else {}


def _describe(run: RunBuilder, task: dict[str, Any]) -> None:
    facts = {"run_id": task.get("id"), "name": task.get("name"), "project": task.get("project_name")}
    facts |= {"notes": task.get("comment"), "tags": task.get("tags"), "config": _settings(task.get("hyperparams"))}
    run.facts |= {key: value for key, value in facts.items() if value}


def _settings(sections: Any) -> dict[str, Any]:
    found = {}
    for section, settings in sections.items() if isinstance(sections, dict) else ():
        for name, about in settings.items() if isinstance(settings, dict) else ():
            value = about.get("value") if isinstance(about, dict) else about
            shown = name if section == SECTION else f"{section}/{name}"
            found[shown] = written(value) if isinstance(value, str) else value
    return found


def _add_start(run: RunBuilder, line: bytes) -> None:
    events = _events(line)
    if events and isinstance(events[0], dict) and "created" not in run.facts:
        run.facts |= {"created": moment(events[0].get("timestamp")), "host": str(events[0].get("worker") or "")}


def _events(line: bytes) -> list[Any]:
    found = decoded(line)
    return found if isinstance(found, list) else []


def _add_lines(run: RunBuilder, lines: Iterable[bytes]) -> None:
    for line in lines:
        events = _events(line)
        if not events and line.strip():
            run.note("lines that are no JSON lists, left out")
        for event in events:
            _add_event(run, event if isinstance(event, dict) else {})


def _add_event(run: RunBuilder, event: dict[str, Any]) -> None:
    metric, variant, value = str(event.get("metric")), str(event.get("variant")), number(event.get("value"))
    name = metric if metric == variant else f"{metric}/{variant}"
    if event.get("type") != SCALAR:
        run.leave_out(f"events that are no scalars ({event.get('type')})"[:100], name)
    elif value is None:
        run.not_a_number(name, event.get("value"))
    else:
        step = whole(event.get("iter"))
        run.add(name, value, None if step == NO_ITERATION else step, moment(event.get("timestamp")))


def unite(runs: Sequence[Imported]) -> list[Imported]:
    """Return each session once: ClearML leaves its folder beside the zip. The one with more points stays."""
    found: dict[str, list[Imported]] = defaultdict(list)
    for run in runs:
        found[str(run.facts.get("run_id") or run.path)].append(run)
    return [max(some, key=lambda run: sum(map(len, run.columns.values()))) for some in found.values()]


FORMAT = ImportFormat(
    "clearml",
    "offline session of ClearML, a folder or a zip",
    recognises,
    fill,
    empty=("the session has no scalar", "check whether the task was closed"),
    owns_folder=owns_folder,
    unite=unite,
)
