"""MLflow over HTTP: `mlflow+http(s)://[user:password@]host:port[/base][?experiment=NAME]`.

The experiment is the run's project if the address names none. The run has the tag `stepscope.run`, by which it is found
again. A point that is sent twice is stored once, because MLflow's key of a point is all of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlunsplit

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.mlflow.api import EXISTS, MISSING, MlflowApi
from stepscope.exporters.sinks.mlflow.history import split
from stepscope.exporters.sinks.mlflow.points import (
    MOST_METRICS,
    MOST_OTHERS,
    MOST_UNCLEAR,
    log_batches,
    metric_texts,
    pair_texts,
    stored_points,
)
from stepscope.exporters.sinks.mlflow.run_facts import (
    RUN_TAG,
    RunView,
    changes,
    first_tags,
    milliseconds,
    note,
    one_of,
    run_mark,
    run_name,
)
from stepscope.exporters.sinks.sink import (
    Receipt,
    Sink,
    SinkDeniesError,
    SinkDownError,
    SinkError,
    SinkRefusesError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.mlflow.points import StoredPoint
    from stepscope.exporters.sinks.sink import RunFacts, RunNews, SinkBatch

OPTIONS = ("experiment",)
STRANGE = "a request was answered with something that MLflow does not answer"
DELETED = "its run was deleted in MLflow; restore it there, or give the sink another experiment"


class MlflowSink(Sink):
    """A tracking server of MLflow."""

    kind: ClassVar[str] = "mlflow"
    most_points: ClassVar[int] = 5000
    is_keyed: ClassVar[bool] = True
    settle: ClassVar[float] = 1.0
    """Seconds after which a run without metrics is searched again: another node may create one in the same moment."""

    def __init__(self, address: SinkAddress, environ: Mapping[str, str]) -> None:
        """Connect to nothing yet. UsageError if the address cannot be one of this sink."""
        super().__init__(address, environ)
        if not address.target(environ).hostname:
            raise UsageError(f"use sink {address.name}", "its address has no host", "write mlflow+http://host:5000")
        self._experiment_name = address.options(environ, OPTIONS).get("experiment", "")
        self._api: MlflowApi | None = None
        self._run_id = self._page = self._notes = ""
        self._view = RunView()
        self._confirmed: set[StoredPoint] = set()
        self._is_unsure = True

    def probe(self) -> str:
        """Return what this sink is, in a few words, if it would take rows; raise SinkError if not. Creates nothing."""
        api = MlflowApi(self.address.target(self.environ), self.environ)
        api.begin()
        try:
            found = api.post("experiments/search", {"max_results": 1})
        except SinkDownError as error:
            raise SinkDownError(f"no MLflow answers at {api.place}: {error}", error.retry_after) from None
        except (SinkDeniesError, SinkRefusesError) as error:
            raise SinkDeniesError(f"MLflow at {api.place}: {error}") from None
        finally:
            api.close()
        if set(found) - {"experiments", "next_page_token"}:
            raise SinkDownError(f"no MLflow answers at {api.place}: {STRANGE}")
        return f"MLflow at {api.place}"

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:
        """Create the run in MLflow, or find it again, with the credentials of now."""
        self.close()
        target = self.address.target(self.environ)
        self._api = MlflowApi(target, self.environ)
        self._api.begin()
        try:
            found = self._known(known) or self._found(run, was_known="run_id" in known)
            info = found["info"]
            self._run_id, experiment_id = str(info["run_id"]), str(info["experiment_id"])
            self._view = _view_of(found)
            self._is_unsure = _has_metrics(found)
        except SinkRefusesError as error:
            raise SinkDeniesError(str(error)) from None
        except (KeyError, TypeError, AttributeError):
            raise SinkDownError(STRANGE) from None
        self._page, self._notes = run.page, run.notes
        netloc = target.netloc.rpartition("@")[2]
        page = f"/experiments/{experiment_id}/runs/{self._run_id}"
        link = urlunsplit((target.scheme, netloc, f"{target.path.rstrip('/')}/", "", page))
        return {"run_id": self._run_id, "experiment_id": experiment_id, "link": link}

    def send(self, batch: SinkBatch) -> Receipt:
        """Send points; return when MLflow has them.

        If it fails in the middle, the points that MLflow has confirmed are not sent again.
        """
        rows, merged = stored_points(batch, self.address.prefix)
        self._opened.begin()
        left = [row for row in rows if row not in self._confirmed] if self._confirmed else rows
        unclear: list[StoredPoint] = []
        if self._is_unsure and left:
            present, left, unclear = self._split(left)
            self._confirmed.update(present)
        self._is_unsure = True
        taken: list[list[StoredPoint]] = []
        try:
            for some, most in ((left, MOST_METRICS), (unclear, MOST_UNCLEAR)):
                for body, sent in log_batches(self._run_id, "metrics", metric_texts(some), most):
                    self._log(body)
                    taken.append(sent)
        except SinkError:
            self._confirmed.update(*taken)
            raise
        self._is_unsure = False
        self._confirmed.difference_update(rows)
        return Receipt(merged=merged)

    def report(self, news: RunNews) -> None:
        """Bring MLflow's view of the run up to date."""
        self._opened.begin()
        try:
            self._change(news)
        except SinkRefusesError:
            # Another node may have written a parameter meanwhile, with another value.
            found = self._opened.get("runs/get", run_id=self._run_id).get("run", {})
            if not _is_active(found):
                raise SinkDeniesError(DELETED) from None
            self._view = _view_of(found)
            self._change(news)

    def close(self) -> None:
        """Close the connection."""
        if self._api is not None:
            self._api.close()
            self._api = None
        self._confirmed.clear()

    @property
    def _opened(self) -> MlflowApi:
        if self._api is None:
            raise SinkDownError("the sink is not open")
        return self._api

    def _known(self, known: Mapping[str, str]) -> dict[str, Any]:
        """Return the run of last time; {} if it is not there, or deleted."""
        if not known.get("run_id"):
            return {}
        found: dict[str, Any] = self._opened.get("runs/get", run_id=known["run_id"]).get("run", {})
        return found if _is_active(found) else {}

    def _found(self, run: RunFacts, *, was_known: bool) -> dict[str, Any]:
        """Return the run with our tag, after creating it if there never was one."""
        start = time.monotonic()
        experiment_id = self._experiment(self._experiment_name or run.project)
        runs = self._tagged(experiment_id, run_mark(run))
        active = [one for one in runs if _is_active(one)]
        if not active:
            if runs or was_known:
                raise SinkDeniesError(DELETED)
            active = [self._created(experiment_id, run)]
        if not any(map(_has_metrics, active)):
            # A node that saw no run before this one was there has created its own after this long. Then all see all.
            time.sleep(min(max(self.settle, 3 * (time.monotonic() - start)), 5.0) if self.settle else 0.0)
            active = [one for one in self._tagged(experiment_id, run_mark(run)) if _is_active(one)] or active
        chosen = one_of([(one["info"]["run_id"], _has_metrics(one)) for one in active])
        for other in active:
            if other["info"]["run_id"] != chosen and not _has_metrics(other):
                self._opened.post("runs/delete", {"run_id": other["info"]["run_id"]}, (MISSING,))
        return next(one for one in active if one["info"]["run_id"] == chosen)

    def _created(self, experiment_id: str, run: RunFacts) -> dict[str, Any]:
        facts = {
            "experiment_id": experiment_id,
            "start_time": milliseconds(run.created),
            "run_name": run_name(run),
            "tags": [{"key": key, "value": value} for key, value in first_tags(run).items()],
        }
        created: dict[str, Any] = self._opened.post("runs/create", facts)["run"]
        return created

    def _tagged(self, experiment_id: str, mark: str) -> list[dict[str, Any]]:
        asked = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`{RUN_TAG}` = '{mark}'",
            "run_view_type": "ALL",
            "max_results": 100,
        }
        runs = self._opened.post("runs/search", asked).get("runs", [])
        return [one for one in runs if _view_of(one).tags.get(RUN_TAG) == mark]  # a database may ignore case

    def _experiment(self, name: str) -> str:
        """Return the id of an experiment, after creating it if it is not there."""
        api = self._opened
        found = api.get("experiments/get-by-name", experiment_name=name)
        if not found:
            created = api.post("experiments/create", {"name": name}, (EXISTS,))
            if created:
                return str(created["experiment_id"])
            found = api.get("experiments/get-by-name", experiment_name=name)  # another process was faster
        experiment = found["experiment"]
        if experiment.get("lifecycle_stage", "active") != "active":
            raise SinkDeniesError(
                f"the experiment {name[:100]} was deleted in MLflow; restore it there, or name another"
            )
        return str(experiment["experiment_id"])

    def _split(self, rows: list[StoredPoint]) -> tuple[list[StoredPoint], list[StoredPoint], list[StoredPoint]]:
        try:
            return split(self._opened, self._run_id, rows)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise SinkDownError(STRANGE) from None

    def _log(self, body: bytes) -> None:
        try:
            self._opened.log(body)
        except SinkRefusesError:
            if not _is_active(self._opened.get("runs/get", run_id=self._run_id).get("run", {})):
                raise SinkDeniesError(DELETED) from None
            raise

    def _change(self, news: RunNews) -> None:
        api, run_id = self._opened, self._run_id
        has_notes = bool(news.notes) and news.notes != self._notes
        change = changes(self._view, news, note(news.notes, self._page) if has_notes else "")
        for field, given in (("params", change.params), ("tags", change.tags)):
            for body, _ in log_batches(run_id, field, pair_texts(given), MOST_OTHERS):
                api.log(body)
        for key in change.gone:
            api.post("runs/delete-tag", {"run_id": run_id, "key": key}, (MISSING,))
        if change.is_other:
            end = {} if change.end_time is None else {"end_time": change.end_time}
            api.post("runs/update", {"run_id": run_id, "status": change.status, **end})
        view = self._view
        tags = {key: value for key, value in view.tags.items() if key not in change.gone} | change.tags
        self._view = RunView(view.params | change.params, tags, change.status, change.end_time)
        self._notes = news.notes or self._notes


def _is_active(run: Mapping[str, Any]) -> bool:
    return bool(run) and run["info"].get("lifecycle_stage", "active") == "active"


def _has_metrics(run: Mapping[str, Any]) -> bool:
    return bool(run.get("data", {}).get("metrics"))


def _view_of(run: Mapping[str, Any]) -> RunView:
    data, info = run.get("data", {}), run["info"]
    params, tags = ({one["key"]: one.get("value", "") for one in data.get(field, ())} for field in ("params", "tags"))
    end = int(info.get("end_time") or 0) or None
    return RunView(params, tags, str(info.get("status", "")), end)
