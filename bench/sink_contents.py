"""What sinks hold of a run, read through their own interfaces, and compared with the run point by point."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from bench.sink_proxy import REJECT
from bench.sink_servers import MLFLOW, Handler, Server, fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.sink_servers import Reply
    from stepscope.store.sinks import SinkState

COLUMNS = ("bench/value", "bench/opposite", "bench/number")
"""What a row of the training holds."""
PAGE = 20_000
"""Points that MLflow returns at once."""


class Recorded(NamedTuple):
    """One point of the run on disk."""

    name: str
    time: int
    """Microseconds since 1970 UTC."""
    step: int
    value: float


@dataclass(frozen=True)
class Compared:
    """What a sink lacks, and what it has too often."""

    sink: str
    missing: int
    extra: int
    """Points that are there twice, or that were never recorded; of OTLP, those that were sent again though refused."""
    note: str = ""


@dataclass(frozen=True)
class Target:
    """A server that a sink sends to."""

    sink: str
    port: int
    url: str
    """Address of the sink, with {port} in the place of the port."""
    compared: Callable[[Sequence[Recorded], Path, SinkState], Compared]


def recorded(run: Path) -> list[Recorded]:
    """Return what the training logged, as the run on disk has it."""
    import stepscope

    points = stepscope.open(run).points(list(COLUMNS))
    columns = zip(points.name.tolist(), points.time.tolist(), points.step.tolist(), points.value.tolist(), strict=True)
    return [Recorded(points.names[code], *rest) for code, *rest in columns]


def mlflow_target(port: int) -> Target:
    """Return an MLflow server."""

    def compared(points: Sequence[Recorded], run: Path, state: SinkState) -> Compared:
        wanted = {(one.name, one.time // 1000, one.step, one.value) for one in points}
        runs, found = in_mlflow(port, run.parent.name)
        missing, extra = wanted - found.keys(), sum(found.values()) - len(wanted & found.keys())
        return Compared("mlflow", len(missing), extra, f"{runs} run, {state.merged_points} in the same ms")

    return Target("mlflow", port, "mlflow+http://127.0.0.1:{port}", compared)


def in_mlflow(port: int, experiment: str) -> tuple[int, Counter[tuple[str, int, int, float]]]:
    """Return the number of runs of an experiment, and how often it has each point in all of them."""

    def asked(path: str, given: dict[str, Any] | None = None, **query: str) -> dict[str, Any]:
        body = None if given is None else json.dumps(given).encode()
        url = f"http://127.0.0.1:{port}{MLFLOW}{path}?{urlencode(query)}"
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=120) as answer:
            return dict(json.loads(answer.read()))

    number = asked("experiments/get-by-name", experiment_name=experiment)["experiment"]["experiment_id"]
    runs = asked("runs/search", {"experiment_ids": [number]}).get("runs", [])
    found: Counter[tuple[str, int, int, float]] = Counter()
    for run in runs:
        for name in COLUMNS:
            query = {"run_id": run["info"]["run_id"], "metric_key": name, "max_results": str(PAGE)}
            while True:
                page = asked("metrics/get-history", **query)
                found.update(
                    (name, int(one["timestamp"]), int(one.get("step", 0)), float(one["value"]))
                    for one in page.get("metrics", ())
                )
                if not page.get("next_page_token"):
                    break
                query["page_token"] = page["next_page_token"]
    return len(runs), found


def prometheus_target(port: int) -> Target:
    """Return a Prometheus: of several values of a series in one millisecond it keeps one."""

    def compared(points: Sequence[Recorded], run: Path, state: SinkState) -> Compared:
        wanted: dict[tuple[str, int], set[float]] = {}
        for one in points:
            wanted.setdefault((one.name, one.time // 1000), set()).add(one.value)
        query = urlencode({"query": f'{{run="{run.name}",metric!=""}}[2h]', "time": time.time() + 60})
        answer = json.loads(fetched(f"http://127.0.0.1:{port}/api/v1/query?{query}") or b"{}")
        found: Counter[tuple[str, int]] = Counter()
        wrong = 0
        for series in answer["data"]["result"]:
            for moment, value in series["values"]:
                key = series["metric"]["metric"], round(moment * 1000)
                found[key] += 1
                wrong += float(value) not in wanted.get(key, ())
        extra = wrong + sum(count - 1 for count in found.values())
        note = f"{len(points) - len(wanted)} in the same ms, {state.refused_rows} rows said to be refused"
        return Compared("prometheus", len(wanted.keys() - found.keys()), extra, note)

    return Target("prometheus", port, "prometheus+http://127.0.0.1:{port}/api/v1/write", compared)


class OtlpStore:
    """A receiver of OTLP in this process that keeps the points of the training, and drops some if it is told to."""

    def __init__(self) -> None:
        """Listen on a port of its own."""
        self.stored: Counter[Recorded] = Counter()
        self.dropped: set[Recorded] = set()
        self.drops = self.repeated = 0
        """Points that were dropped, and that came again after that."""
        self._lock = threading.Lock()
        store = self

        class Storing(Handler):
            def reply(self, body: bytes) -> Reply:
                refused = store.take(gzip.decompress(body), int(self.headers.get(REJECT) or 0))
                return 200, {"Content-Type": "application/x-protobuf"}, refused

        self._server = Server(("127.0.0.1", 0), Storing)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, message: bytes, reject: int) -> bytes:
        """Keep the points of a message but for the first `reject`; return the answer."""
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service

        points = [
            Recorded(label.value.string_value, point.time_unix_nano // 1000, 0, point.as_double)
            for resource in service.ExportMetricsServiceRequest.FromString(message).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.gauge.data_points
            for label in point.attributes
            if label.key == "metric" and label.value.string_value in COLUMNS
        ]
        with self._lock:
            self.repeated += sum(point in self.dropped for point in points)
            out, kept = points[:reject], points[reject:]
            self.dropped.update(out)
            self.drops += len(out)
            self.stored.update(kept)
        answer = service.ExportMetricsServiceResponse()
        if out:
            answer.partial_success.rejected_data_points = len(out)
            answer.partial_success.error_message = "dropped by the bench"
        return bytes(answer.SerializeToString())

    def target(self) -> Target:
        """Return it as a target."""

        def compared(points: Sequence[Recorded], run: Path, state: SinkState) -> Compared:
            wanted = {one._replace(step=0) for one in points}
            counted = 0
            for path in (run / "sinks" / state.key).glob("*.refused.jsonl"):
                counted += sum(json.loads(line)["points"] for line in path.read_text(encoding="utf-8").splitlines())
            missing = len(wanted - self.stored.keys() - self.dropped) + abs(self.drops - counted)
            extra = self.repeated + len(self.stored.keys() - wanted)
            twice = sum(count - 1 for count in self.stored.values())
            return Compared("otlp", missing, extra, f"{self.drops} refused, {counted} counted; {twice} twice (no key)")

        return Target("otlp", self.port, "otlp+http://127.0.0.1:{port}", compared)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
