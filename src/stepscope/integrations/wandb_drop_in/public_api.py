"""`wandb.Api`: recorded runs, read from Stepscope's own store."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.integrations.wandb_drop_in.errors import WandbCommError
from stepscope.integrations.wandb_drop_in.unknown import unknown
from stepscope.sources.opened_run import open_run
from stepscope.store.catalog import runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.store.reader import Past

STATES = {"finished": "finished", "running": "running", "failed": "failed"}
"""Our states that W&B has too; the others are crashed there."""
NO_STEP = -(2**63)
STEP, TIME = "_step", "_timestamp"


class PublicRun:
    """A recorded run, for reading."""

    def __init__(self, past: Past) -> None:
        """Read `past`."""
        self._past = past
        self.id, self.name, self.project = past.id, past.name, past.project
        self.entity = ""
        self.config: dict[str, Any] = past.config if isinstance(past.config, dict) else {}

    @property
    def state(self) -> str:
        """finished, running, failed or crashed."""
        return STATES.get(self._past.state, "crashed")

    @property
    def path(self) -> list[str]:
        """Entity, project and id."""
        return [self.entity, self.project, self.id]

    @property
    def url(self) -> str:
        """The run's folder as an address."""
        return self._past.path.as_uri()

    @property
    def created_at(self) -> str:
        """When the run was created, in UTC."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._past.meta.get("created", 0) / 1e6))

    @cached_property
    def _labels(self) -> dict[str, Any]:
        return {key: value for event in self._past.events("labels") for key, value in event.items()}

    @property
    def tags(self) -> list[str]:
        """The tags."""
        return list(self._past.tags)

    @property
    def notes(self) -> str | None:
        """The notes."""
        return self._past.notes or None

    @property
    def group(self) -> str | None:
        """The group."""
        return self._past.group or None

    @property
    def job_type(self) -> str | None:
        """The sort of job."""
        return self._labels.get("job_type")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The last value of each metric, and what the script set itself."""
        rows = self._rows(None, 0, None)
        found: dict[str, Any] = {}
        for row in rows:
            found.update(row)
        for event in self._past.events("summary"):
            values = event.get("values")
            found.update(values if isinstance(values, dict) else {})
        return found

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """The summary."""
        return self.summary

    @property
    def lastHistoryStep(self) -> int:  # noqa: N802 - W&B's spelling
        """The highest step; -1 if there is none."""
        return max((row[STEP] for row in self._rows(None, 0, None)), default=-1)

    def history(
        self,
        samples: int = 500,
        keys: Any = None,
        x_axis: str = STEP,  # noqa: ARG002 - W&B's signature
        pandas: bool = True,  # noqa: FBT001, FBT002
        stream: str = "default",  # noqa: ARG002
    ) -> Any:
        """Return about `samples` rows, evenly chosen: a frame if pandas is wanted and installed, else a list."""
        rows = self._rows(keys, 0, None)
        if len(rows) > samples > 0:
            rows = [rows[at] for at in np.linspace(0, len(rows) - 1, samples).astype(int)]
        if not pandas:
            return rows
        try:
            import pandas as pd  # only if it is installed
        except ImportError:
            return rows
        return pd.DataFrame.from_records(rows)

    def scan_history(
        self,
        keys: Any = None,
        page_size: int = 1000,  # noqa: ARG002 - W&B's signature
        min_step: int = 0,
        max_step: int | None = None,
        **_: Any,
    ) -> Iterator[dict[str, Any]]:
        """Return every row that has all of `keys`."""
        return iter(self._rows(keys, min_step, max_step))

    def _rows(self, keys: Any, first: int, last: int | None) -> list[dict[str, Any]]:
        """Return the values by step; machine samples, which have none, are left out."""
        names = [keys] if isinstance(keys, str) else None if keys is None else [key for key in keys if key[:1] != "_"]
        points = self._past.points(names)
        rows: dict[int, dict[str, Any]] = defaultdict(dict)
        wanted = np.flatnonzero((points.step != NO_STEP) & (points.rank >= 0))
        for at in wanted:
            step = int(points.step[at])
            row = rows[step]
            row[points.names[points.name[at]]] = float(points.value[at])
            row[TIME] = float(points.time[at]) / 1e6
        found = [{STEP: step, **rows[step]} for step in sorted(rows) if step >= first and (last is None or step < last)]
        return found if names is None else [row for row in found if all(name in row for name in names)]

    def __getattr__(self, name: str) -> Any:
        return unknown(f"Api.run.{name}")

    def __repr__(self) -> str:
        return f"<Run {self.project}/{self.id} ({self.state})>"


class Api:
    """Reads the store; writes nothing."""

    def __init__(self, overrides: Any = None, *_: Any, **__: Any) -> None:
        """Take W&B's arguments; a project in `overrides` counts."""
        self.settings: dict[str, Any] = dict(overrides or {})
        self.default_entity = ""

    def runs(
        self, path: str | None = None, filters: Any = None, order: str = "+created_at", **_: Any
    ) -> list[PublicRun]:
        """Return the runs of a project ("project" or "entity/project"), or of all; equality filters are applied."""
        project = (path or str(self.settings.get("project") or "")).strip("/").rpartition("/")[2]
        infos = [info for info in runs() if info.state != "broken" and project in {"", info.project}]
        infos.sort(key=lambda info: info.created, reverse=order.startswith("-"))
        found = [PublicRun(open_run(info.path)) for info in infos]
        return [run for run in found if _matches(run, filters or {})]

    def run(self, path: str = "") -> PublicRun:
        """Return a run by "entity/project/id", "project/id" or its id.

        Raises:
            WandbCommError: there is no such run, as W&B raises it.
        """
        words = "/".join(path.strip("/").replace("/runs/", "/").split("/")[-2:])
        try:
            return PublicRun(open_run(words))
        except StepscopeError as error:
            raise WandbCommError(str(error)) from error

    def __getattr__(self, name: str) -> Any:
        return unknown(f"Api.{name}")


NAMES = {"displayName": "name", "display_name": "name", "name": "id", "jobType": "job_type"}
"""Fields of W&B's filters whose attribute has another name."""


def _matches(run: PublicRun, filters: dict[str, Any]) -> bool:
    """Return whether a run has the values asked for; what is not a plain comparison with a value is not applied."""
    for key, wanted in filters.items():
        place, _, rest = key.partition(".")
        if place in {"config", "summary_metrics"}:
            value = getattr(run, place).get(rest.removesuffix(".value"))
        elif place == "tags":
            value = wanted if wanted in run.tags else None
        else:
            value = getattr(run, NAMES.get(key, key))
        if not isinstance(wanted, dict) and not key.startswith("$") and value != wanted:
            return False
    return True
