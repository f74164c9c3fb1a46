"""Offline experiments of Comet: a zip with `experiment.json` and `messages.json`, one JSON object per line."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.trackers.archive import has_members, member_document, member_lines
from stepscope.importers.trackers.json_text import decoded
from stepscope.importers.words import moment, number, whole

if TYPE_CHECKING:
    from stepscope.importers.source import FileHead

EXPERIMENT, MESSAGES = "experiment.json", "messages.json"
OWN_SETTINGS = ("curr_step", "curr_epoch")
"""Parameters that Comet logs itself with every new step."""
MACHINE = "sys."
"""Begins the names of system metrics."""


def recognises(head: FileHead) -> bool:
    """Return whether a file is the zip of an offline experiment."""
    return has_members(head, {EXPERIMENT, MESSAGES})


def fill(path: str, run: RunBuilder) -> None:
    """Read the metrics of an experiment, its parameters, and what Comet says about the run."""
    about = member_document(path, EXPERIMENT, run.note)
    created, ended = moment(about.get("start_time")), moment(about.get("stop_time"))
    error = about.get("customer_error_message")
    facts = {
        "run_id": about.get("offline_id"),
        "project": about.get("project_name"),
        "tags": about.get("tags"),
        "created": created if math.isfinite(created) else None,
        "ended": ended if math.isfinite(ended) else None,
        "state": "failed" if about.get("customer_error_reported") else "finished" if math.isfinite(ended) else None,
        "cause": error,
    }
    run.facts |= {key: value for key, value in facts.items() if value}
    run.facts["config"] = {}
    for line in chain.from_iterable(member_lines(path, MESSAGES, run.note)):
        message = decoded(line)
        payload = message.get("payload") if isinstance(message, dict) else None
        if isinstance(payload, dict):
            _add(run, str(message.get("type")), payload)
        elif line.strip():
            run.note("lines that are no messages, left out")


def _add(run: RunBuilder, kind: str, payload: dict[str, Any]) -> None:
    metric, param = payload.get("metric"), payload.get("param")
    if kind == "metric_msg" and isinstance(metric, dict):
        _add_metric(run, metric, payload)
    elif kind == "parameter_msg" and isinstance(param, dict):
        if param.get("paramName") not in OWN_SETTINGS:
            run.facts["config"][str(param.get("paramName"))] = param.get("paramValue")
    elif kind == "log_other" and payload.get("key") == "Name":
        run.facts["name"] = str(payload.get("value"))
    elif kind == "log_other":
        run.facts.setdefault("other", {})[str(payload.get("key"))] = payload.get("value")
    elif kind == "system_details":
        run.facts |= {fact: payload[key] for key, fact in (("hostname", "host"), ("user", "user")) if payload.get(key)}
    else:
        run.leave_out("messages that are no metrics", kind[:60])


def _add_metric(run: RunBuilder, metric: dict[str, Any], payload: dict[str, Any]) -> None:
    name, value = str(metric.get("metricName")), number(metric.get("metricValue"))
    if name.startswith(MACHINE):
        name = f"system/{name[len(MACHINE) :]}"
    elif payload.get("context"):  # what was logged within `experiment.train()`, as Comet itself shows it
        name = f"{payload['context']}_{name}"
    if value is None:
        run.not_a_number(name, metric.get("metricValue"))
    else:
        run.add(name, value, whole(metric.get("step")), moment(payload.get("local_timestamp")))


FORMAT = ImportFormat(
    "comet",
    "offline experiment of Comet (zip)",
    recognises,
    fill,
    empty=("the experiment has no metric", "check whether it was ended"),
)
