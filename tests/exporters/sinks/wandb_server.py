"""As much of W&B's server as its package needs to upload a run: the account, the run, the rows of its history."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "k" * 40


class WandbServer(ThreadingHTTPServer):
    """Keeps what it gets. Rows with the same `_step` replace each other, as W&B's own `.syncstate` supposes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lines = []
        """Each uploaded row, also those that came twice."""
        self.runs = {}
        self.alerts = []
        self.exits = []
        self.is_deaf = False
        """Whether rows are not taken now."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def history(self):
        return list({row["_step"]: row for row in self.lines}.values())

    def handle_error(self, request, client_address):
        """A client that was killed is no error."""

    def close(self):
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Say nothing."""

    def _body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, value, status=200):
        body = json.dumps(value).encode()
        with contextlib.suppress(OSError):  # it was killed
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def do_GET(self):
        self._answer({})

    def do_PUT(self):
        self._body()
        self._answer({})

    def do_POST(self):
        asked = json.loads(self._body())
        if self.path.endswith("/file_stream"):
            self._stream(asked)
            return
        query, values = asked["query"], asked.get("variables") or {}
        for word, answer in (
            ("upsertBucket", self._upsert),
            ("RunResumeStatus", self._resume),
            ("createRunFiles", self._files),
            ("notifyScriptableRunAlert", self._alert),
            ("iewer", self._viewer),
        ):
            if word in query:
                self._answer({"data": answer(values)})
                return
        self._answer({"data": {}})

    def _stream(self, asked):
        if self.server.is_deaf:
            self._answer({"error": "not now"}, 503)
            return
        for name, file in (asked.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                self.server.lines += [json.loads(line) for line in file["content"]]
            elif name == "wandb-summary.json":
                self.server.runs[self.path.split("/")[-2]]["summary"] = json.loads(file["content"][-1])
        if asked.get("complete"):
            self.server.exits.append(asked.get("exitcode"))
        self._answer({"limits": {}})

    def _viewer(self, values):
        is_known = self.headers.get("Authorization", "").startswith("Basic ")
        return {"viewer": {"id": "VQ==", "username": "ada", "entity": "ada", "flags": "{}"} if is_known else None}

    def _upsert(self, values):
        name = values["name"]
        is_new = name not in self.server.runs
        run = self.server.runs.setdefault(name, {"summary": {}, "config": "{}"})
        run.update({key: value for key, value in values.items() if value})
        project = {"id": "UA==", "name": values.get("project") or "p", "entity": {"id": "RQ==", "name": "ada"}}
        bucket = {"id": "Qg==", "name": name, "displayName": run.get("displayName") or name, "description": ""}
        bucket |= {"config": run["config"], "sweepName": None, "project": project, "historyLineCount": 0}
        return {"upsertBucket": {"bucket": bucket, "inserted": is_new}}

    def _resume(self, values):
        run = self.server.runs.get(values["name"])
        rows = self.server.history()
        bucket = run and {
            "id": "Qg==",
            "name": values["name"],
            "displayName": run.get("displayName"),
            "summaryMetrics": json.dumps(run["summary"]),
            "config": run["config"],
            "wandbConfig": '{"t":1}',
            "historyLineCount": len(rows),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
            "eventsTail": "[]",
            "tags": [],
            "notes": "",
        }
        return {"model": {"id": "TQ==", "name": "p", "entity": {"id": "RQ==", "name": "ada"}, "bucket": bucket}}

    def _files(self, values):
        url = self.server.url
        files = [{"name": name, "uploadUrl": f"{url}/upload/{name}"} for name in values["files"]]
        return {"createRunFiles": {"runID": "Qg==", "uploadHeaders": [], "files": files}}

    def _alert(self, values):
        self.server.alerts.append(values)
        return {"notifyScriptableRunAlert": {"success": True}}
