"""A run as MLflow keeps it: its tags, parameters and status, and what has to change after news.

A parameter never changes its value in MLflow. If one changes in our configuration, its parameter stays as it was, and
the tag `stepscope.config.<name>` has the value of now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from stepscope.exporters.sinks.mlflow.names import NAME_LIMIT, TAG_LIMIT, cut, params_of, valid_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.exporters.sinks.sink import AlertChange, RunFacts, RunNews

RUN_TAG = "stepscope.run"
"""The tag that says which of our runs this is."""
NOTE = "mlflow.note.content"
USER_TAG = "stepscope.tag."
STATUS = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "killed": "KILLED",
    "oom-killed": "KILLED",
    "preempted": "KILLED",
    "interrupted": "KILLED",
    "lost": "KILLED",
}
"""MLflow's word for each of our states; for one that is not here, FAILED."""
_QUOTES = str.maketrans(dict.fromkeys("'\"`\\%", "_"))


@dataclass
class RunView:
    """What MLflow has of a run."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    status: str = ""
    end_time: int | None = None
    """Milliseconds since 1970 UTC."""


class RunChanges(NamedTuple):
    """What to write into MLflow."""

    params: dict[str, str]
    """New ones."""
    tags: dict[str, str]
    """New ones, and those with another value."""
    gone: list[str]
    """Tags to delete."""
    status: str
    end_time: int | None
    """Milliseconds since 1970 UTC; None while it runs."""
    is_other: bool
    """Whether status or end differ from what MLflow has."""


def milliseconds(seconds: float) -> int:
    """Return a time in seconds since 1970 as MLflow has it."""
    return math.floor(seconds * 1000)


def run_name(run: RunFacts) -> str:
    """Return the name of a run in MLflow."""
    return cut(run.name or run.id, NAME_LIMIT)


def run_mark(run: RunFacts) -> str:
    """Return the value of `RUN_TAG` for a run: its identity, in characters that a search can quote."""
    plain = run.identity.translate(_QUOTES)
    return cut(plain if plain == run.identity else valid_name(run.identity), TAG_LIMIT)


def first_tags(run: RunFacts) -> dict[str, str]:
    """Return the tags that a run is created with."""
    facts = {
        RUN_TAG: run_mark(run),
        "mlflow.runName": run_name(run),
        "mlflow.source.name": "stepscope",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": run.commit,
        NOTE: note(run.notes, run.page),
        "stepscope.path": run.path,
        "stepscope.host": run.host,
        "stepscope.group": run.group,
    }
    return {key: cut(value, TAG_LIMIT) for key, value in facts.items() if value} | user_tags(run.tags)


def note(notes: str, page: str) -> str:
    """Return the description of a run, with a link to our page of it."""
    link = f"[Open in Stepscope]({page})" if page else ""
    return "\n\n".join(part for part in (notes, link) if part)


def user_tags(tags: Iterable[str]) -> dict[str, str]:
    """Return people's tags as MLflow has them."""
    return {valid_name(f"{USER_TAG}{tag}"): "true" for tag in tags}


def changes(view: RunView, news: RunNews, noted: str = "") -> RunChanges:
    """Return what news change in MLflow's view; `noted` is the description to write, if it has changed.

    No tags in the news means that they are as they were.
    """
    params = params_of(news.config)
    tags = {
        "stepscope.state": news.state,
        "stepscope.cause": news.cause,
        "stepscope.verdict": news.verdict,
        NOTE: noted,
    }
    wanted = {key: value for key, value in tags.items() if value}
    wanted |= {valid_name(f"stepscope.alert.{alert.rule}"): alert_text(alert) for alert in news.alerts}
    for name, value in params.items():
        other = valid_name(f"stepscope.config.{name}")
        if view.params.get(name, value) != value or other in view.tags:
            wanted[other] = value
    wanted = {key: cut(value, TAG_LIMIT) for key, value in wanted.items()} | user_tags(news.tags)
    status = STATUS.get(news.state, "FAILED")
    end = milliseconds(news.ended) if news.is_over and news.ended is not None else None
    return RunChanges(
        {name: value for name, value in params.items() if name not in view.params},
        {key: value for key, value in wanted.items() if view.tags.get(key) != value},
        [key for key in view.tags if key.startswith(USER_TAG) and news.tags and key not in wanted],
        status,
        end,
        (status, end) != (view.status, view.end_time if news.is_over else None),
    )


def alert_text(alert: AlertChange) -> str:
    """Return the last change of an alert as the value of a tag."""
    time = datetime.fromtimestamp(alert.time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    place = "" if alert.step is None else f", step {alert.step}"
    word = "firing since" if alert.state == "firing" else alert.state
    return f"{word} {time} ({alert.severity}{place}): {alert.text}"


def one_of(runs: Sequence[tuple[str, bool]]) -> str:
    """Return the id of the run that is used if there are several, given as id and whether it has metrics."""
    return min(runs, key=lambda run: (not run[1], run[0]))[0]
