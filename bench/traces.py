"""Traces: what is read, how exact the shares are, and what it costs beside Holistic Trace Analysis.

HTA brings pandas and more, so it lives in an environment of its own: `make hta` makes one in .venv-hta, and
STEPSCOPE_HTA_PYTHON names another Python.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figure import Figure, Options
from bench.processes import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
FOLDERS = ("hta-traces", "kineto-resnet50", "param-dlrm-8rank", "tracelens-h100")
ABSENT = "not installed: the traces of ../shared/data"
NO_HTA = "not installed: HolisticTraceAnalysis (make hta)"
HTA_PYTHON = Path(os.environ.get("STEPSCOPE_HTA_PYTHON", ROOT / ".venv-hta" / "bin" / "python"))
CLASSES = ("compute_percent", "communication_percent", "memcpy_percent")
DEVICE = {"kernel": CLASSES[0], **dict.fromkeys(("gpu_memcpy", "memcpy", "gpu_memset", "memset"), CLASSES[2])}
HTA = """
import sys, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
files = {number: path for number, path in enumerate(sys.argv[1:])}
found = TraceAnalysis(trace_files=files, trace_dir="", include_last_profiler_step=True)
found.get_temporal_breakdown(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_idle_time_breakdown(ranks=list(files), visualize=False)
found.get_cuda_kernel_launch_stats(ranks=list(files), visualize=False)
found.get_queue_length_summary(ranks=list(files))
"""
"""The same analyses by HTA."""


def measure(options: Options) -> list[Figure]:
    """Return all figures of traces."""
    return [*_reading(options), *_loading(), *_beside(options), _large(options)]


def _files() -> list[Path]:
    endings = (".json.gz", ".raw.gz", ".tar.gz")
    return sorted(path for name in FOLDERS for path in (DATA / name).rglob("*") if path.name.endswith(endings))


def _reading(options: Options) -> list[Figure]:
    """Return how many files fail, and how far shares are from the plain interval union and from TraceLens."""
    from stepscope.analysis.trace.summary import summary
    from stepscope.core.errors import StepscopeError
    from stepscope.importers.traces.chrome_trace import read_traces

    failed, off, files = 0, 0.0, _files()
    if options.quick:
        files = [path for path in files if path.stat().st_size < 500_000]
    for path in files:
        expected = dict(plain_shares(path))
        try:
            for trace in read_traces(path):
                off = max(off, _difference(summary(trace), expected[trace.file]))
        except StepscopeError as error:
            print(error, file=sys.stderr)
            failed += 1
    return [
        Figure("trace_failures", "traces that cannot be read", failed if files else None, "", 0, f"{len(files)} files"),
        Figure(
            "trace_off",
            "shares off the plain interval union",
            off if files else None,
            "points",
            0.01,
            ABSENT if not files else "",
        ),
        Figure(
            "trace_tracelens",
            "shares off TraceLens",
            _tracelens(),
            "points",
            0.1,
            ABSENT if not files else "idle, busy, communication",
        ),
    ]


def _difference(found: dict[str, Any], expected: dict[str, float]) -> float:
    return max((abs(found[key] - value) for key, value in expected.items()), default=0.0)


def plain_shares(path: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield file and shares in percent, by the plainest code there is: the whole JSON, a sorted list, one loop."""
    for name, text in _texts(path):
        spans = _spans(json.loads(text))
        every = [span for group in spans.values() for span in group]
        if not every:
            yield name, {}
            continue
        length = max(end for _, end in every) - min(start for start, _ in every)
        share = {key: 100 * _union(found) / length for key, found in spans.items()}
        yield name, {"idle_percent": 100 - 100 * _union(every) / length, **share}


def _spans(loaded: Any) -> dict[str, list[tuple[float, float]]]:
    """Return the intervals of the device's events by what they are for."""
    events = loaded["traceEvents"] if isinstance(loaded, dict) else loaded
    spans: dict[str, list[tuple[float, float]]] = {key: [] for key in CLASSES}
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "X":
            group = DEVICE.get(str(event.get("cat", "")).lower())
            if group == CLASSES[0] and "nccl" in event["name"].lower():
                group = CLASSES[1]
            if group:
                spans[group].append((event["ts"], event["ts"] + event["dur"]))
    return spans


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                if stream is not None and member.name.endswith(".json"):
                    yield f"{path}:{member.name}", stream.read()
    else:
        yield str(path), gzip.decompress(path.read_bytes())


def _union(spans: list[tuple[float, float]]) -> float:
    covered, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reach:
            covered += end - max(start, reach)
            reach = end
    return covered


def _tracelens() -> float | None:
    """Return the largest difference from TraceLens's csv, in its window: the profiler's step."""
    from stepscope.analysis.trace.summary import choose_window, summary
    from stepscope.importers.traces.chrome_trace import read_trace

    off: float | None = None
    for path in sorted((DATA / "tracelens-h100").glob("*.json.gz")):
        folder = path.with_name(path.name.removesuffix(".json.gz") + "_expected")
        with (folder / "gpu_timeline.csv").open(encoding="utf-8") as file:
            expected = {row["type"]: float(row["percent"]) for row in csv.DictReader(file)}
        trace = read_trace(path)
        found = summary(trace, choose_window(trace, "steps"))
        busy = 100 - found["idle_percent"]
        pairs = [
            (found["idle_percent"], "idle_time"),
            (busy, "busy_time"),
            (found["communication_percent"], "total_comm_time"),
        ]
        off = max([off or 0.0, *(abs(value - expected[key]) for value, key in pairs)])
    return off


def _loading() -> list[Figure]:
    """Return how far the DataLoader's share is from the known one, with no worker and with four."""
    from stepscope.analysis.trace.data import loading
    from stepscope.importers.traces.chrome_trace import read_trace

    found = []
    for workers, known in ((0, 39.6), (4, 1.0)):
        path = next((DATA / "kineto-resnet50" / f"num_workers_{workers}").glob("*.gz"), None)
        percent = loading(read_trace(path)).percent if path else None
        off = None if percent is None else abs(percent - known)
        beside = f"{percent:.2f} %, known {known} %" if percent is not None else ABSENT
        found.append(
            Figure(f"trace_data_{workers}", f"DataLoader share, {workers} workers, off", off, "points", 1.0, beside)
        )
    return found


def _beside(options: Options) -> list[Figure]:
    """Return time and memory as a share of HTA's, in alternating runs of whole processes, the best of each."""
    large = DATA / "hta-traces" / "v100_world2_rank1.json.gz"
    ranks = _unpacked(options.scratch)
    titles = {
        "trace_time": ("time of 216 092 events, of HTA's", 0.4),
        "trace_memory": ("peak memory of the same, of HTA's", 0.5),
        "trace_ranks_time": ("time of eight ranks, of HTA's", 0.3),
    }
    missing = "" if HTA_PYTHON.exists() and ranks else (NO_HTA if ranks else ABSENT)
    if missing or options.quick:
        text = missing or "not installed: left out by --quick"
        return [Figure(key, what, None, "", limit, text) for key, (what, limit) in titles.items()]
    ours, theirs = _both([large])
    eight, their_eight = _both(ranks)
    values = {
        "trace_time": (ours[0] / theirs[0], f"{ours[0]:.2f} s, HTA {theirs[0]:.2f} s"),
        "trace_memory": (ours[1] / theirs[1], f"{ours[1]:.0f} MiB, HTA {theirs[1]:.0f} MiB"),
        "trace_ranks_time": (eight[0] / their_eight[0], f"{eight[0]:.2f} s, HTA {their_eight[0]:.2f} s"),
    }
    return [Figure(key, what, values[key][0], "", limit, values[key][1]) for key, (what, limit) in titles.items()]


def _unpacked(folder: Path) -> list[Path]:
    path = DATA / "param-dlrm-8rank" / "dlrm_kineto.tar.gz"
    if not path.exists():
        return []
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.glob("dlrm_kineto/*.json"))


def _both(files: list[Path], rounds: int = 3) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return seconds and MiB of us and of HTA for the same files."""
    names = [str(path) for path in files]
    mine = [sys.executable, "-m", "stepscope", "trace", "--json", *names]
    theirs = [str(HTA_PYTHON), "-c", HTA, *names]
    runs = [(cost(mine), cost(theirs)) for _ in range(rounds)]
    best = [tuple(min(run[who][part] for run in runs) for part in (0, 1)) for who in (0, 1)]
    return (best[0][0], best[0][1]), (best[1][0], best[1][1])


COST = """
import resource, subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
sys.stderr.buffer.write(done.stderr[-2000:])
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
sys.exit(done.returncode)
"""
"""Runs a command from a process that is small itself: Linux counts the memory of whoever forks as the child's peak."""


def cost(command: list[str]) -> tuple[float, float]:
    """Return the seconds that a process takes, and its peak memory (or that of the largest of its children), in MiB.

    Raises:
        RuntimeError: it fails.
    """
    small = [sys.executable, "-S", "-c", COST, *command]
    done = subprocess.run(small, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    seconds, mebibytes = map(float, done.stdout.split())
    return seconds, mebibytes


def _large(options: Options) -> Figure:
    """Return the peak memory of reading a large synthetic trace."""
    size = (48 << 20) if options.quick else (2 << 30)
    path = options.scratch / "large.json"
    events = write_synthetic(path, size)
    seconds, memory = cost([sys.executable, "-m", "stepscope", "trace", "--json", str(path)])
    beside = f"{size >> 20} MiB of text, {events:,} events, {seconds:.0f} s"
    return Figure("trace_large", "peak memory of a 2 GB trace", memory, "MiB", 512, beside)


def write_synthetic(path: Path, size: int) -> int:
    """Write a trace of about so many bytes as a training would give; return its events."""
    base, at, events = 4_458_676_000_000.0, 0, 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [\n')
        while file.tell() < size - 4096:
            file.write("".join(_group(base + 40.0 * number, number) for number in range(at, at + 5000)))
            at, events = at + 5000, events + 5000 * 6
        file.write('{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}\n]}\n')
    return events


def _group(ts: float, number: int) -> str:
    """Return one operator with its inner one, its launch, its kernel and their arrows."""
    host, name = '"pid": 1, "tid": 1', ("aten::mm", "aten::add_", "aten::native_layer_norm", "aten::copy_")[number % 4]
    return (
        f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", {host}, "ts": {ts:.3f}, "dur": 31.118, "args": '
        f'{{"External id": {number}, "Input Dims": [[64, 1024], [1024, {number % 97}]], "Ev Idx": {number}}}}},\n'
        f'{{"ph": "X", "cat": "cpu_op", "name": "aten::empty", {host}, "ts": {ts + 2:.3f}, "dur": 2.5}},\n'
        f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", {host}, "ts": {ts + 8:.3f}, "dur": 6.004, '
        f'"args": {{"External id": {number}, "cbid": 211, "correlation": {number + 1}}}}},\n'
        f'{{"ph": "s", "id": {number + 1}, {host}, "ts": {ts + 8:.3f}, "cat": "ac2g", "name": "ac2g"}},\n'
        f'{{"ph": "X", "cat": "kernel", "name": "void kernel_{number % 131}<float>(int, float*)", "pid": 0, "tid": 7, '
        f'"ts": {ts + 20:.3f}, "dur": {20 + number % 17:.3f}, "args": {{"External id": {number}, "device": 0, '
        f'"stream": 7, "correlation": {number + 1}, "grid": [64, 1, 1], "block": [256, 1, 1]}}}},\n'
        f'{{"ph": "f", "id": {number + 1}, "pid": 0, "tid": 7, "ts": {ts + 20:.3f}, "cat": "ac2g", "name": "ac2g", '
        f'"bp": "e"}},\n'
    )
