"""Trackio: rows, configuration and alerts as the files that Trackio's own writers leave for its dashboard.

`trackio://project?dir=/path`: without a project it is the run's, without `dir` it is the folder that Trackio uses
(`TRACKIO_DIR`, else `trackio` in Hugging Face's cache). Trackio itself need not be installed here, and its databases
are not touched. We leave files of JSON lines in `<folder>/inbox`. A running dashboard (`trackio show`) imports them
every 15 seconds (`TRACKIO_INBOX_POLL_INTERVAL`) and deletes them. `trackio.Api` and `trackio list` do not import:
they see only what a dashboard has imported before.

Each record has an id that is computed from run and row, and Trackio ignores an id that it has: a row is stored once,
also if its file was imported and deleted before it is sent again.

A row without a step is stored as a system metric, which Trackio draws over time like its own GPU metrics. As a metric
Trackio would invent a step for it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from stepscope.core.errors import UsageError
from stepscope.core.strict_json import strict, word
from stepscope.exporters.sinks.sink import Receipt, Sink, SinkDeniesError, SinkRefusesError, written_name
from stepscope.exporters.sinks.trackio.inbox import TrackioInbox, default_folder, problem_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.sink import AlertChange, RunFacts, RunNews, SentRow, SinkBatch

RESERVED = frozenset(("project", "run", "timestamp", "step", "time", "metrics"))
"""Names that are columns in Trackio: like Trackio, we write `__` before them."""
LEVELS = {"info": "info", "warning": "warn", "critical": "error"}
ENDS = {"finished": "info", "preempted": "warn", "interrupted": "warn"}
"""The level of the alert about a run's end; it is error for all others."""
TRACKIOS_OWN = (
    "_system",
    "_configs",
    "_traces",
    "_artifacts",
    "_artifact_versions",
    "_artifact_aliases",
    "_run_artifact_links",
)
"""Ends of project names that Trackio refuses: files that it writes beside a project are called so."""
MOST_NAME = 180
"""Bytes of a project's name: Trackio calls files after it."""
MOST_DEPTH = 50
"""Levels of nesting in a configuration; Trackio's importer fails on 255, and with it every record of the folder."""
MOST_INTEGER = 2**63
_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class TrackioSink(Sink):
    """A project in a folder of Trackio."""

    kind: ClassVar[str] = "trackio"
    most_points: ClassVar[int] = 5000
    is_keyed: ClassVar[bool] = True
    interval = 10.0
    divides_rows: ClassVar[bool] = False
    """The id of a record is that of its row: Trackio would ignore the second part of one."""

    def __init__(self, address: SinkAddress, environ: Mapping[str, str]) -> None:
        """Touch nothing yet."""
        super().__init__(address, environ)
        target = address.target(environ)
        given = address.options(environ, ("dir",)).get("dir", "")
        if target.path.strip("/"):
            raise UsageError(f"use sink {address.name}", "a Trackio project has no /", "write trackio://project")
        self._project = unquote(target.netloc).strip()
        self._folder = Path(given).expanduser() if given else default_folder(environ)
        if not self._folder.is_absolute():
            what = "its dir" if given else "Trackio's folder"
            cause = f"{what} is the relative path {str(self._folder)[:200]!r}"
            raise UsageError(f"use sink {address.name}", cause, "give an absolute one, as trackio://?dir=/data/trackio")
        if self._project and _problem(self._project):
            raise UsageError(f"use sink {address.name}", _problem(self._project), "choose another project")
        self._identity, self._created = "", ""
        self._run: dict[str, str] = {}
        self._config: Mapping[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._inbox = TrackioInbox(self._folder, "stepscope")
        self._names: dict[tuple[str, int], str] = {}
        self._reported = ""

    def probe(self) -> str:
        """Say which folder it is, and whether Trackio is installed here."""
        problem = problem_of(self._folder)
        if problem:
            raise SinkDeniesError(problem)
        is_here = importlib.util.find_spec("trackio") is not None
        return f"Trackio in {self._folder}" + ("" if is_here else "; trackio is not installed in this environment")

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:
        """Leave the record that makes the run appear in Trackio, with its configuration."""
        project = known.get("project") or self._project or run.project
        if _problem(project):
            raise SinkDeniesError(f"{_problem(project)}: name another one in the address, as trackio://project")
        self._identity = run.identity
        # Trackio takes a run whose name changes for two runs: the first name stays.
        name = known.get("run") or run.name.strip() or run.id
        self._run = {"project": project, "run": name, "run_id": self._id("run")}
        self._created = _iso(run.created)
        self._config = run.config
        self._facts = {
            "run": run.id,
            "project": run.project,
            "host": run.host,
            "commit": run.commit,
            "page": run.page,
            "folder": run.path,
            "group": run.group,
        }
        writer = known.get("writer") or f"stepscope-{self._run['run_id'][:12]}-{uuid.uuid4().hex[:8]}"
        self._inbox = TrackioInbox(self._folder, writer)
        self._inbox.resume()
        if known.get("run_id") != self._run["run_id"]:
            header = self._header(run.config, run.tags, run.notes)
            self._write([header])
            self._reported = _text(header)
        return {**self._run, "writer": writer, "link": ""}

    def send(self, batch: SinkBatch) -> Receipt:
        """Leave one record for each row."""
        self._write(self._record(row) for row in batch.rows())
        return Receipt()

    def report(self, news: RunNews) -> None:
        """Bring the configuration up to date; leave alerts, and how the run ended, as alerts of Trackio."""
        header = self._header(news.config or self._config, news.tags, news.notes)
        reported = _text(header)
        records = [header] if reported != self._reported else []
        records += [self._alert(alert) for alert in news.alerts]
        if news.is_over:
            records += self._end(news)
        if records:
            self._write(records)
        self._reported = reported

    def _header(self, config: Mapping[str, Any], tags: Iterable[str], notes: str) -> dict[str, Any]:
        """Return a record without values. It carries the configuration: Trackio keeps the last that it gets."""
        ours = {**self._facts, "tags": list(tags), "notes": notes}
        trackios = {"_Created": self._created, "_Group": self._facts["group"] or None}
        whole = {**config, **trackios, "stepscope": ours}
        return {
            **self._frame("metric", self._created),
            "metrics": {},
            "step": 0,
            "config": strict(_shallow(whole), word),
            "log_id": self._id("header"),
        }

    def _record(self, row: SentRow) -> dict[str, Any]:
        metrics = {
            self._name(name, row.rank): value if math.isfinite(value) else word(value)
            for name, value in row.values.items()
        }
        frame = self._frame("system_metric" if row.step is None else "metric", _iso(row.time))
        record = {**frame, "metrics": metrics, "log_id": self._id(f"row {row.id}")}
        return record if row.step is None else {**record, "step": row.step, "config": None}

    def _name(self, name: str, rank: int) -> str:
        found = self._names.get((name, rank))
        if found is None:
            text = written_name(self.address.prefix, name, rank)
            found = f"__{text}" if text in RESERVED or text.startswith("__") else text
            self._names[name, rank] = found
        return found

    def _alert(self, alert: AlertChange) -> dict[str, Any]:
        is_over = alert.state == "resolved"
        level = "info" if is_over else LEVELS.get(alert.severity, "warn")
        title = f"{alert.rule} resolved" if is_over else alert.rule
        key = f"alert {alert.id} {alert.state} {alert.time!r}"
        return self._notice(key, alert.time, title, alert.text, level, alert.step)

    def _end(self, news: RunNews) -> Iterable[dict[str, Any]]:
        moment = time.time() if news.ended is None else news.ended
        level = ENDS.get(news.state, "error")
        yield self._notice(f"end {news.state} {news.cause}", moment, f"Run {news.state}", news.cause, level)
        if news.verdict:
            yield self._notice(f"verdict {news.verdict}", moment, "Diagnosis", news.verdict, "info")

    def _notice(
        self, key: str, moment: float, title: str, text: str, level: str, step: int | None = None
    ) -> dict[str, Any]:
        return {
            **self._frame("alert", _iso(moment)),
            "title": title,
            "text": text,
            "level": level,
            "step": step,
            "alert_id": self._id(key),
        }

    def _frame(self, kind: str, timestamp: str) -> dict[str, Any]:
        return {"v": 1, "kind": kind, **self._run, "timestamp": timestamp}

    def _id(self, what: str) -> str:
        """Return an id that is the same for the same thing of the same run, and differs from all others."""
        text = f"{self._identity} {what}".encode("utf-8", "replace")
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    def _write(self, records: Iterable[dict[str, Any]]) -> None:
        # Trackio skips a line with a lone surrogate without a word: such a sign becomes a question mark.
        lines = [_text(record).encode("utf-8", "replace") for record in records]
        if lines:
            self._inbox.write(b"\n".join([*lines, b""]))


def _iso(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, OSError):
        raise SinkRefusesError(f"its time, {seconds!r} s since 1970, is no date") from None


def _problem(project: str) -> str:
    """Return why Trackio cannot have a project of this name; empty if it can. Its files keep letters, digits, - _."""
    kept = "".join(sign for sign in project if sign.isalnum() or sign in "-_")
    if not kept:
        return f"the project {project[:40]!r} has no letter and no digit"
    if len(kept.encode("utf-8", "replace")) > MOST_NAME:
        return f"the project {project[:40]!r} has a name of more than {MOST_NAME} bytes"
    if kept.startswith("registry-") or kept.endswith(TRACKIOS_OWN):
        return f"Trackio keeps names such as {project[:40]!r} for itself"
    return ""


def _shallow(value: Any, depth: int = 0) -> Any:
    """Return plain data that Trackio's JSON library takes: nested at most `MOST_DEPTH`, integers of 64 bits."""
    if isinstance(value, (dict, list, tuple)) and depth >= MOST_DEPTH:
        return "(nested too deeply)"
    if isinstance(value, dict):
        return {str(key): _shallow(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shallow(item, depth + 1) for item in value]
    if isinstance(value, int) and not -MOST_INTEGER <= value < MOST_INTEGER:
        return hex(value)[:200]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)[:200]
