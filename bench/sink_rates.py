"""How fast a finished run is sent to each kind of sink, and the memory that takes; the vendors' clients beside it."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import TYPE_CHECKING

from bench.figure import Figure
from bench.processes import output_of
from bench.synthetic import long_run

if TYPE_CHECKING:
    from pathlib import Path

    from bench.figure import Options

METRICS = 10
EXPORT = """
import json, resource, sys, time
started = time.monotonic()
from stepscope.cli.main import main
code = main(["export", sys.argv[1], "--to", sys.argv[2]])
seconds, usage = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"code": code, "seconds": seconds, "kib": usage.ru_maxrss, "cpu": usage.ru_utime + usage.ru_stime}))
"""
"""Sends a run and prints what that took."""
TITLES = {
    "mlflow": "MLflow server",
    "sqlite": "MLflow's SQLite",
    "prometheus": "remote write 2.0",
    "otlp": "OTLP",
}
LEAST = {"sqlite": 20_000, "prometheus": 200_000, "otlp": 100_000}
"""Points per second."""
MOST_TIME = 1.1
"""Times what MLflow's own client takes with a server: the server itself is the limit, about 0.1 ms per point."""
MOST_MEMORY = 150.0
"""MiB."""
STEPS, SERVER_STEPS = 150_000, 10_000
"""Steps of ten metrics; fewer for the MLflow server, which is slower than all others."""
VENDORS = {
    "mlflow": ("mlflow", "MlflowClient.log_batch"),
    "otlp": ("opentelemetry.exporter.otlp.proto.http", "OTLPMetricExporter"),
}
"""The module and the name of the vendor's own client."""
VENDOR_POINTS = {"mlflow": 20_000, "otlp": 200_000}


def rates(options: Options, receiver: int, mlflow: int | None) -> list[Figure]:
    """Return speed and memory for each kind of sink; `receiver` and `mlflow` are ports."""
    folder = options.scratch / "rates"
    steps, fewer = (10_000, 2_000) if options.quick else (STEPS, SERVER_STEPS)
    long_run(folder / "long", METRICS, steps, 4)
    long_run(folder / "short", METRICS, fewer, 2)
    urls = {
        "sqlite": f"mlflow+sqlite:///{folder}/own.db",
        "prometheus": f"prometheus+http://127.0.0.1:{receiver}/api/v1/write",
        "otlp": f"otlp+http://127.0.0.1:{receiver}",
    }
    if mlflow is None:
        found = [
            Figure(f"sink_rate_mlflow{part}", "sending to MLflow", None, beside="mlflow not installed")
            for part in ("", "_memory")
        ]
    else:
        found = _sent("mlflow", folder / "short", fewer, f"mlflow+http://127.0.0.1:{mlflow}", mlflow)
    output_of("-c", EXPORT, str(folder / "short"), urls["sqlite"])  # creates the database, which takes MLflow seconds
    for kind, url in urls.items():
        found += _sent(kind, folder / "long", steps, url, receiver)
    return found


def _sent(kind: str, run: Path, steps: int, url: str, port: int) -> list[Figure]:
    printed, _, _ = output_of("-c", EXPORT, str(run), url)
    told = json.loads(printed.splitlines()[-1])
    if told["code"]:
        raise RuntimeError(f"the run could not be sent to {kind}")
    points = steps * METRICS
    rate, vendor = points / told["seconds"], _vendor(kind, port)
    beside = f"{points / 1e6:g} M points, {told['cpu']:.1f} s CPU"
    if kind in VENDORS:
        client = f"{VENDORS[kind][1]} {_thousands(vendor)} points/s" if vendor else "its own client is not installed"
        beside = f"{beside}; {client}"
    return [
        _speed(kind, rate, vendor, beside),
        Figure(f"sink_rate_{kind}_memory", "  peak memory of that", told["kib"] / 1024, "MiB", MOST_MEMORY),
    ]


def _speed(kind: str, rate: float, vendor: float | None, beside: str) -> Figure:
    """Return the figure of a rate; for a server that limits every client, compared with the vendor's."""
    key = f"sink_rate_{kind}"
    if kind not in LEAST:
        ratio = vendor / rate if vendor else None
        what = f"{TITLES[kind]}: time compared with its own client"
        return Figure(key, what, ratio, "x", MOST_TIME, f"{_thousands(rate)} points/s, {beside}")
    least = LEAST[kind]
    beside = f"{_thousands(rate)} points/s, at least {_thousands(least)}; {beside}"
    return Figure(key, f"a million points to {TITLES[kind]}", 1e6 / rate, "s", 1e6 / least, beside)


def _vendor(kind: str, port: int) -> float | None:
    """Return how many points per second the vendor's own client sends; None without one."""
    try:
        is_there = kind in VENDORS and importlib.util.find_spec(VENDORS[kind][0]) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        return None
    printed, _, _ = output_of("-m", "bench.sink_rates", kind, str(port))
    return float(printed.splitlines()[-1])


def _thousands(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


def with_mlflow(port: int) -> float:
    """Return the seconds that MLflow's client takes for so many points, a thousand at a time."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(f"http://127.0.0.1:{port}")
    run = client.create_run(client.create_experiment(f"vendor-{time.time_ns()}")).info.run_id
    now = time.time_ns() // 1_000_000
    begun = time.monotonic()
    for first in range(0, VENDOR_POINTS["mlflow"], 1000):
        steps = range(first // METRICS, (first + 1000) // METRICS)
        client.log_batch(run, [Metric(f"m{n}", step / 7, now + step, step) for step in steps for n in range(METRICS)])
    return time.monotonic() - begun


def with_otlp(port: int) -> float:
    """Return the seconds that OpenTelemetry's exporter takes for so many points, ten thousand at a time."""
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import (
        Gauge,
        Metric,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    exporter = OTLPMetricExporter(f"http://127.0.0.1:{port}/v1/metrics", compression=Compression.Gzip)
    resource, scope, now, each = Resource({}), InstrumentationScope("bench"), time.time_ns(), 10_000 // METRICS
    begun = time.monotonic()
    for first in range(0, VENDOR_POINTS["otlp"] // METRICS, each):
        steps = range(first, first + each)
        metrics = [
            Metric(f"m{n}", "", "", Gauge([NumberDataPoint({"rank": "0"}, 0, now + step, step / 7) for step in steps]))
            for n in range(METRICS)
        ]
        exporter.export(MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")]))
    return time.monotonic() - begun


def main(arguments: list[str]) -> int:
    """Print the points per second of a vendor's client."""
    kind, port = arguments[0], int(arguments[1])
    seconds = with_mlflow(port) if kind == "mlflow" else with_otlp(port)
    print(VENDOR_POINTS[kind] / seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
