"""Weights & Biases: `wandb://entity/project`, with `?mode=offline|online|shared`, `?base_url=https://…`, `?dir=/path`.

Its package runs in a helper process (`wandb_helper`), since nothing of it can be interrupted. `send` returns when W&B's
own file on this machine holds the rows; W&B uploads them from there. A helper that was killed leaves its file behind:
the next one has W&B upload it, skips rows that it holds, and continues the same run. Offline there is one folder
`offline-run-…` per helper, all with the same id: `wandb sync` makes one run of them.
"""

from __future__ import annotations

import importlib.util
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from stepscope.core.errors import UsageError
from stepscope.core.terminal_text import plain
from stepscope.exporters.sinks.sink import (
    CALL_SECONDS,
    Receipt,
    Sink,
    SinkDeniesError,
    SinkDownError,
    SinkRefusesError,
)
from stepscope.exporters.sinks.wandb.account import account_of
from stepscope.exporters.sinks.wandb.process import HelperProcess
from stepscope.exporters.sinks.wandb.terms import (
    MOST_NAME,
    config,
    project_name,
    report_of,
    run_id,
    tags,
    text,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.sink import RunFacts, RunNews, SinkBatch

MODES = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "shared": "shared"}
"""W&B's modes by their names, two of which are old."""
BUDGET = CALL_SECONDS - 3
"""Seconds of a call that the helper gets; the rest is for ending it."""
MISSING = "wandb is not installed here; pip install wandb"
NOT_OURS = frozenset(
    f"WANDB_{name}"
    for name in (
        *("SERVICE", "RUN_ID", "RESUME", "RUN_GROUP", "NAME", "NOTES", "TAGS", "JOB_TYPE", "RUN_DIR", "DISABLED"),
        *("SWEEP_ID", "SWEEP_PARAM_PATH", "CONFIG_PATHS", "LAUNCH", "LAUNCH_CONFIG_PATH", "CONSOLE", "PROGRAM", "MODE"),
    )
)
"""Variables with which a script that itself uses W&B describes its own run, and the process that serves it."""


class WandbSink(Sink):
    """A run in W&B, written by a helper process."""

    kind = "wandb"
    most_points = 5000
    divides_rows = False

    def __init__(self, address: SinkAddress, environ: Mapping[str, str]) -> None:
        """Check the address; start nothing."""
        super().__init__(address, environ)
        target = address.target(environ)
        options = address.options(environ, ("mode", "base_url", "dir"))
        names = [unquote(part) for part in target.path.split("/") if part]
        what = f"use sink {address.name}"
        if len(names) > 1:
            raise UsageError(what, "its address has more than entity and project", "write wandb://entity/project")
        if options.get("mode", "online") not in MODES:
            cause = f"its mode is {options['mode'][:40]!r}"
            raise UsageError(what, cause, "choose offline, online or shared")
        self._entity = unquote(target.netloc.rpartition("@")[2])
        self._project = names[0] if names else ""
        self._options = options
        self._helper: HelperProcess | None = None
        self._opened: dict[str, Any] = {}
        """The request that creates or continues the run in a new helper; {} before the first `open`."""
        self._facts: RunFacts | None = None
        self._news: RunNews | None = None
        self._state = ""
        """The state of the run that W&B has, from us or from a helper before."""
        self._is_ready, self._is_finished = False, False

    def probe(self) -> str:
        """Look for the package and the key, and ask the server whose it is."""
        mode = self._mode()
        found = importlib.util.find_spec("wandb")
        if found is None or not found.origin:  # a folder `wandb` with files of runs is no package
            raise SinkDeniesError(MISSING)
        project = "/".join(part for part in (self._entity, self._project) if part)
        if mode == "offline":
            return f"W&B offline, for `wandb sync`{f' to {project}' if project else ''}"
        server = account_of(self.environ, self._options.get("base_url", ""))
        if not server.key and self.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
            return f"W&B at {server.url}, with an identity token"
        if not server.key:
            host = urlsplit(server.url).netloc
            raise SinkDeniesError(f"there is no API key for {host}; set WANDB_API_KEY, or run `wandb login`")
        who = server.owner(self.environ)
        return f"W&B at {server.url} as {who}{f', project {project}' if project else ''}"

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:
        """Start the helper, and create or continue the run; its id follows from ours."""
        mode = self._mode()
        if mode == "online" and not run.is_first:
            raise SinkDeniesError("several nodes write one W&B run only in its shared mode; add ?mode=shared")
        folder = self._options.get("dir") or self.environ.get("WANDB_DIR")
        folder = folder or os.path.join(run.path, "sinks", self.address.key)
        self._opened = {
            "do": "open",
            "id": known.get("id") or run_id(run),
            "project": project_name(self._project or run.project),
            "entity": self._entity or None,
            "name": text(run.name or run.id)[:MOST_NAME],
            "group": text(run.group)[:MOST_NAME] or None,
            "tags": tags(run.tags),
            "notes": text(run.notes) or None,
            "mode": mode,
            "config": config(run, run.config),
            "settings": {
                "root_dir": os.path.abspath(os.path.expanduser(folder)),
                "x_label": text(run.node) or None,
                "x_primary": run.is_first,
                "x_update_finish_state": run.is_first,
                **({"host": run.host} if run.host else {}),
            },
        }
        self._facts = run
        answer = self._start(time.monotonic() + BUDGET)
        link = answer.get("link") or known.get("link", "")
        return {"id": self._opened["id"], "folder": answer.get("folder", ""), **({"link": link} if link else {})}

    def send(self, batch: SinkBatch) -> Receipt:
        """Log the rows; return when W&B's file holds them."""
        rows = [written(row, self.address.prefix) for row in batch.rows()]
        self._ask({"do": "send", "rows": rows})
        return Receipt()

    def report(self, news: RunNews) -> None:
        """Update configuration, tags, notes and summary; alerts are in the summary, and W&B sends them if online."""
        self._ask(self._reported(news))
        self._news, self._state = news, news.state

    def _reported(self, news: RunNews) -> dict[str, Any]:
        if self._facts is None:
            raise SinkDownError("the run is not open yet")
        return report_of(self._facts, news)

    def close(self) -> None:
        """End the run in W&B as it ended, or pause it if it goes on; SinkDownError if the rest was not uploaded yet."""
        is_over = self._state not in {"", "running"}
        is_needed = is_over or (self._helper is not None and self._helper.is_running)
        try:
            if self._opened and is_needed and not self._is_finished:
                code = 0 if self._state == "finished" else 1
                self._ask({"do": "finish", "code": code, "is_pause": not is_over})
                self._is_finished = is_over
        finally:
            self.stop()

    @property
    def helper_pid(self) -> int | None:
        """The process id of the helper, None if there is none."""
        return None if self._helper is None else self._helper.pid

    def stop(self) -> None:
        """End the helper at once; what it did not upload is left to the next one."""
        if self._helper is not None:
            self._helper.kill()
            self._helper = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + BUDGET
        if not self._opened:
            raise SinkDownError("the run is not open yet")
        if self._helper is None or not self._helper.is_running or not self._is_ready:
            self._start(until)
        return self._exchanged(request, until)

    def _start(self, until: float) -> dict[str, Any]:
        """Start a helper unless one is still starting, and have it continue the run."""
        if self._helper is not None and (self._is_ready or not self._helper.is_running):
            self.stop()
        if self._helper is None:
            self._is_ready = False
            self._helper = HelperProcess(self._environ())
        answer = self._exchanged(self._opened, until)
        self._is_ready = True
        self._is_finished = False
        self._state = self._state or answer.get("state", "")
        if self._news is not None:  # a new helper knows nothing, and its file is read after the others
            self._exchanged({**self._reported(self._news), "alerts": []}, until)
        return answer

    def _exchanged(self, request: dict[str, Any], until: float) -> dict[str, Any]:
        """Return an answer that says yes; end the helper after one that says no, unless it can go on."""
        helper = self._helper
        answer = helper.ask(request, until) if helper is not None else {}
        if answer.get("ok"):
            return answer
        if "busy" in answer:
            raise SinkDownError(self._clean(answer["busy"]), retry_after=2.0)
        if "refused" in answer:
            raise SinkRefusesError(self._clean(answer["refused"]))
        self.stop()
        if "denied" in answer:
            raise SinkDeniesError(self._clean(answer["denied"]))
        raise SinkDownError(self._clean(answer.get("down") or "W&B's helper gave no answer"))

    def _clean(self, why: object) -> str:
        key = account_of(self.environ, self._options.get("base_url", "")).key
        said = plain(" ".join(str(why).split())).rstrip(".")
        return (said.replace(key, "[redacted]") if key else said)[:400]

    def _mode(self) -> str:
        given = self._options.get("mode") or self.environ.get("WANDB_MODE") or "online"
        if given not in MODES:
            raise SinkDeniesError(f"WANDB_MODE is {given[:40]!r}; set ?mode=online or ?mode=offline in its address")
        return MODES[given]

    def _environ(self) -> dict[str, str]:
        """Return the helper's environment: the user's, without what describes another run of W&B."""
        kept = {name: value for name, value in self.environ.items() if name not in NOT_OURS}
        kept.setdefault("WANDB_ERROR_REPORTING", "false")
        if self._options.get("base_url"):
            kept["WANDB_BASE_URL"] = self._options["base_url"]
        return kept
