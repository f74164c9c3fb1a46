"""The program that writes to W&B: the only place where its package is imported.

It is a child of the sender. Standard input brings one request per line, standard output takes one answer per line, as
JSON. An answer has `ok`, or why not: `down` (try again), `busy` (ask again, we are at it), `denied` (the user must
change something), `refused` (W&B leaves rows out). It ends when its input does.

A row counts as taken when it is in W&B's file of the run, where a kill cannot reach it. W&B writes that file every few
milliseconds when told to; we read there which rows it holds.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stepscope.core.spawn import arguments, interpreter
from stepscope.exporters.sinks.wandb.children import has_ended, started_by
from stepscope.exporters.sinks.wandb.files import (
    RunLog,
    files_of,
    keep_state,
    lock,
    mark_of,
    not_uploaded,
    row_of,
    rows_at_end,
    state_in,
)
from stepscope.exporters.sinks.wandb.terms import ATTEMPT, ROW, STEP, TIME, UPDATED

FLUSH = 0.02
"""Seconds between two times that W&B writes to its file."""
INIT_SECONDS = 15.0
"""The longest that W&B may take to create or find the run."""
FINISH_SECONDS = 18.0
"""The longest that W&B may take to upload the rest at the end."""
PATIENCE = 10.0
"""Seconds after which a request is answered with `busy`."""
UPLOAD_SECONDS = 600.0
"""The longest that the upload of one earlier file may take."""
GRACE = 2.0
"""Seconds that we still look for a row after W&B has written what came after it."""
MOST_NAMES = 100_000
"""Maximum metrics that are defined in W&B as having no step."""
LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}
NEEDED = "x_transaction_log_flush_interval"
"""The setting of W&B without which a row cannot be confirmed."""


class UndoneError(Exception):
    """A request that could not be done: the kind of answer, and why."""

    def __init__(self, kind: str, why: str) -> None:
        """`kind` is down, busy, denied or refused."""
        super().__init__(why)
        self.kind = kind


class Upload:
    """The upload of a file that an earlier helper left, by W&B's own command in a process of its own."""

    def __init__(self, path: Path) -> None:
        """Start it."""
        self.path = path
        command = [interpreter(), *arguments(__name__, "sync", str(path))]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
        self._end = time.monotonic() + UPLOAD_SECONDS

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether it is over, well or not."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._end:
                return False
            self._process.kill()
        return True


class RunWriter:
    """The run in W&B, as long as this process lives."""

    def __init__(self) -> None:
        """Create nothing yet."""
        self._wandb: Any = None
        self._run: Any = None
        self._is_offline = True
        self._log: RunLog | None = None
        self._path = Path()
        self._earlier: set[str] = set()
        """Rows that earlier helpers wrote last."""
        self._held: set[str] = set()
        """Rows of the last batch, which W&B's file holds."""
        self._uploads: list[Path] | None = None
        self._upload: Upload | None = None
        self._stepless: set[str] = set()
        self._reported: dict[str, Any] = {}
        self._lock = -1
        self._cores: set[int] = set()
        """The processes of W&B: one."""

    def open(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Create or continue the run; what an earlier helper left is uploaded before, so that no row is overtaken."""
        try:
            import wandb
        except ImportError:
            raise UndoneError("denied", "wandb is not installed here; pip install wandb") from None
        if NEEDED not in wandb.Settings.model_fields:
            raise UndoneError("denied", f"wandb {wandb.__version__} is too old; pip install -U 'wandb>=0.31'")
        folder = Path(asked["settings"]["root_dir"])
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UndoneError("denied", f"{folder} cannot be created: {error.strerror}") from None
        self._is_offline = asked["mode"] == "offline"
        earlier = files_of(folder / "wandb", asked["id"])
        state = state_in(earlier)
        if not self._is_offline:
            self._finish_uploads(earlier)
            earlier = [path for path in earlier if mark_of(path).exists()]
        self._earlier = rows_at_end(earlier)
        self._wandb, self._run = wandb, self._init(wandb, asked)
        self._cores = started_by(os.getpid())
        self._path = Path(self._run.settings.sync_file)
        self._lock = lock(self._path.parent)
        self._log = RunLog(self._path)
        for name in (STEP, TIME, ROW, ATTEMPT):
            self._run.define_metric(name, hidden=True)
        # Without step_sync=False W&B would give rows without a step the last one that it saw.
        self._run.define_metric("*", step_metric=STEP, step_sync=False)
        return {"link": self._run.url or "", "folder": str(self._path.parent), "state": state}

    def _finish_uploads(self, earlier: list[Path]) -> None:
        if self._uploads is None:
            self._uploads = not_uploaded(earlier)
        until = time.monotonic() + PATIENCE
        while self._upload or self._uploads:
            self._upload = self._upload or Upload(self._uploads.pop(0))
            if not self._upload.wait(max(0.0, until - time.monotonic())):
                raise UndoneError("busy", "W&B is still uploading what an earlier process left")
            self._upload = None

    @staticmethod
    def _init(wandb: Any, asked: dict[str, Any]) -> Any:
        settings = wandb.Settings(
            **asked["settings"],
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=FLUSH,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
            login_timeout=1,
        )
        names = ("id", "project", "entity", "name", "group", "tags", "notes", "mode")
        try:
            return wandb.init(
                **{name: asked[name] for name in names},
                config=asked["config"],
                resume=None if asked["mode"] == "shared" else "allow",
                settings=settings,
            )
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            raise UndoneError("denied", _line(error)) from None
        except wandb.errors.Error as error:
            text = _line(error)
            is_ours = any(word in text for word in ("401", "403", "404", "permission", "not found"))
            raise UndoneError("denied" if is_ours else "down", text) from None

    def send(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Log rows, and return when W&B's file holds them."""
        waiting = set()
        for name, step, moment, attempt, values in asked["rows"]:
            if name in self._held or name in self._earlier:
                continue
            row = {**values, TIME: moment, "_timestamp": moment, ROW: name}
            if step is None:
                self._define_stepless(values)
            else:
                row[STEP] = step
            if attempt:
                row[ATTEMPT] = attempt
            waiting.add(name)
            self._run.log(row, commit=True)
        wanted = frozenset(waiting)
        self._await(lambda record: waiting.discard(row_of(record) or ""), lambda: not waiting)
        # Only these rows can come again, as after a sender that ended before it noted our answer.
        self._held = {row[0] for row in asked["rows"]} - waiting
        if waiting:
            raise UndoneError("refused", f"W&B left out {len(waiting)} rows")
        return {"sent": len(wanted)}

    def _define_stepless(self, values: dict[str, float]) -> None:
        """Let W&B draw what has no step, such as samples of the machine, over time."""
        new = values.keys() - self._stepless
        if not new or len(self._stepless) > MOST_NAMES:
            return
        self._stepless |= new
        for name in new:
            if "*" not in name:  # it would be a pattern
                self._run.define_metric(name, step_metric=TIME, step_sync=False)

    def report(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Bring configuration, tags, notes and summary up to date, and pass alerts on."""
        run = self._run
        if asked["config"] != self._reported.get("config"):
            run.config.update(asked["config"], allow_val_change=True)
        for key in ("tags", "notes"):
            if asked[key] and asked[key] != self._reported.get(key):
                setattr(run, key, asked[key])
        self._reported = asked
        if not self._is_offline:
            for title, text, severity in asked["alerts"]:
                run.alert(title, text, LEVELS.get(severity, "INFO"))
        self._await(lambda _: None, lambda: False, asked["summary"])
        keep_state(self._path, str(asked["summary"].get("stepscope/state", "")))
        return {}

    def _await(self, look: Any, is_done: Any, summary: dict[str, Any] | None = None) -> None:
        """Look at each new record in W&B's file until it holds all; the sender's deadline is the only one.

        W&B writes records in the order in which it got them. So what is missing after the mark was left out by it.
        """
        mark = time.time()
        self._run.summary.update({**(summary or {}), UPDATED: mark})
        sign, end = json.dumps(mark).encode(), math.inf
        while not is_done() and time.monotonic() < end:
            for record in self._log.records() if self._log else ():
                look(record)
                if sign in record:
                    end = min(end, time.monotonic() + (GRACE if summary is None else 0))
            if has_ended(self._cores):
                raise UndoneError("down", "W&B's core has ended")
            if not is_done():
                time.sleep(FLUSH / 2)

    def finish(self, asked: dict[str, Any]) -> dict[str, Any]:
        """End the run in W&B, and return when all was uploaded."""
        if asked["is_pause"]:
            self._run.mark_preempting()
        try:
            self._run.finish(exit_code=asked["code"])
        except TimeoutError:
            raise UndoneError("down", "W&B did not upload the rest in time") from None
        if not self._is_offline:
            mark_of(self._path).touch()
        self._wandb.teardown()  # ends W&B's core, which would stay as a zombie if we were just killed
        return {}


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]


def answer(run: RunWriter, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks for, and return the answer."""
    try:
        deed = {"open": run.open, "send": run.send, "report": run.report, "finish": run.finish}[request["do"]]
        return {"ok": True, **deed(request)}
    except UndoneError as error:
        return {error.kind: str(error)}
    except Exception as error:  # noqa: BLE001 - whatever W&B raises, the sender must hear of it
        return {"down": f"{type(error).__name__}: {_line(error)}"}


def _read(stream: Any, requests: queue.Queue[bytes]) -> None:
    for line in stream:
        requests.put(line)
    os._exit(0)  # the sender has ended; W&B's core ends when it sees that we have


def main(words: list[str]) -> int:
    """Answer requests until the input ends; `sync <file>` uploads a file with W&B's own command instead."""
    if words[:1] == ["sync"]:
        from wandb.cli.cli import cli

        cli.main(args=["sync", "--no-skip-online", words[1]], prog_name="wandb", standalone_mode=True)
        return 0
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what W&B prints is no answer
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    run = RunWriter()
    while True:
        print(json.dumps(answer(run, json.loads(requests.get()))), file=out, flush=True)
