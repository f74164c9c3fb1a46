"""What the alert engine costs, how soon it tells a spike, and how often it cries wolf on healthy runs."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from bench.detection import ABSENT, DATA, MIXTRAL, SPIKES, _incidents, _losses, _places
from bench.figure import Figure, Options
from stepscope.alerts.evaluation.rule_engine import Engine
from stepscope.alerts.rules.backtest import replay
from stepscope.alerts.rules.profiles import profile
from stepscope.alerts.rules.rule import Rule
from stepscope.core.columns import RowSchema, SchemaTable
from stepscope.core.records import FIRST_SCHEMA, RECORD
from stepscope.importers import formats
from stepscope.importers.imported import Imported, series_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.alerts.evaluation.state import Transition

METRICS, RULES, STEPS = 200, 50, 100
"""Metrics in a row, rules, and steps a second."""
HEALTHY = ("modded-nanogpt-runs", "mlperf-v5.1-runs", "megatron-golden", "hf-trainer-state")
MOST_LATE = 2
"""Points after a known spike within which one counts as told."""


def measure(options: Options) -> list[Figure]:
    """Return the figures of the engine."""
    return [*_cost(options), *_spikes(), *_false(options), *_weight()]


def rules() -> list[Rule]:
    """Return fifty rules that look at all of the metrics: the built-in ones, and conditions over every layer."""
    conditions = (
        "layer/*/value > 1e6",
        "mean(layer/*/value, 100) > 1e6",
        "max(layer/*/value, 50) > 1e6",
        "min(layer/*/value, 50) < -1e6",
        "slope(layer/*/value, 100) > 1e6",
        "zscore(layer/*/value, 100) > 50",
        "std(layer/*/value, 100) > 1e6",
        "mean(layer/*/value, 30s) > 1e6",
        "layer/*/value > 1e6 and mean(layer/*/value, 20) > 1e6",
        "not finite(layer/*/value)",
        "abs(layer/*/value) > 1e6 or layer/*/value < -1e6",
        "mean(layer/1/value, 100) > 1.5 * baseline(layer/2/value, 500, 100) + 1e6",
        "percentile(layer/3/value, 95, 200) > 1e6",
        "median(layer/4/value, 100) > 1e6",
    )
    own = [Rule(f"own_{number}", when=text) for number, text in enumerate(conditions)]
    found = [*profile(), *own]
    return found[:RULES]


def pieces(names: tuple[str, ...], values: NDArray[np.float64], first: int) -> list[bytes]:
    """Return rows as a ring has them, ten to a piece, a hundred a second."""
    layout = struct.Struct(f"<{len(names)}d")
    size = RECORD.size + layout.size
    rows = []
    for at, row in enumerate(values, first):
        moment = round(at / STEPS * 1e9)
        rows.append(RECORD.pack(size, FIRST_SCHEMA, at, moment, at) + layout.pack(*row))
    return [b"".join(rows[at : at + 10]) for at in range(0, len(rows), 10)]


def _cost(options: Options) -> list[Figure]:
    """Return the share of a core that fifty rules take on a fast loop with many metrics."""
    first = ("loss", "grad_norm", "learning_rate", "step_seconds", "phase/data")
    names = (*first, *(f"layer/{number}/value" for number in range(METRICS - len(first))))
    table = SchemaTable()
    table.schemas[FIRST_SCHEMA] = RowSchema(FIRST_SCHEMA, names, "d" * len(names))
    fifty = rules()
    engine = Engine(fifty)
    noise = np.random.default_rng(options.seed)
    seconds = 8 if options.quick else 60
    spent, worst = 0.0, 0.0
    for second in range(seconds + 10):
        values = noise.normal(0, 0.01, (STEPS, METRICS))
        values[:, :5] += (3.0 - 0.02 * second, 1.0, 0.1, 0.01, 0.0001)
        drained = pieces(names, values, second * STEPS)
        began = time.process_time()
        for piece in drained:
            engine.rows(0, [piece], table)
        told = engine.evaluate(round((second + 1) * 1e9))
        took = time.process_time() - began
        if second >= 10:  # once every window is full
            spent += took
            worst = max(worst, took)
        if any(change.state == "firing" for change in told):
            raise AssertionError(f"a rule fired on noise: {told}")
    most = sorted(engine.costs().items(), key=lambda item: -item[1])[:3]
    dear = ", ".join(f"{name} {cost / (seconds + 10) * 1e3:.1f} ms/s" for name, cost in most)
    beside = f"{len(fifty)} rules, {METRICS} metrics, {STEPS} steps/s; worst second {worst * 1e3:.0f} ms; {dear}"
    return [Figure("alert_cost", "core that the rules take in the watcher", spent / seconds * 100, "%", 5, beside)]


def _spikes() -> list[Figure]:
    """Return known spikes that the whole engine misses or tells late."""
    missed_what, late_what = "known loss spikes missed by the engine", "points until it tells a spike, at most"
    if not DATA.is_dir():
        return [
            Figure("alert_missed", missed_what, None, "", 0, ABSENT),
            Figure("alert_late", late_what, None, "", 1, ABSENT),
        ]
    cases = [(_losses()[MIXTRAL], at) for at in _places(SPIKES)] + _incidents()
    delays = []
    for loss, at in cases:
        told = [change.step for change in _fired("loss", loss) if change.rule == "loss_spike"]
        behind = [step - at for step in told if step is not None and 0 <= step - at <= MOST_LATE]
        delays.append(min(behind, default=None))
    late = [delay for delay in delays if delay is not None]
    beside = f"{len(cases)} spikes, told by their step"
    return [
        Figure("alert_missed", missed_what, float(len(delays) - len(late)), "", 0, beside),
        Figure("alert_late", late_what, float(max(late, default=0)), "", 1),
    ]


def _fired(name: str, values: NDArray[np.float64]) -> list[Transition]:
    steps = np.arange(len(values))
    source = Imported("", "", {name: series_of(name, steps, values, steps.astype(np.float64))})
    return [change for change in replay(profile(), source) if change.state == "firing"]


def _false(options: Options) -> list[Figure]:
    """Return the alarms per 10 000 points on runs that went well."""
    what = "false alarms per 10 000 points of healthy runs, default profile"
    if not DATA.is_dir():
        return [Figure("alert_false", what, None, "", 1, ABSENT)]
    points, told, runs = 0, [], 0
    for folder in HEALTHY:
        sources = [source for source in formats.read(str(DATA / folder)) if MIXTRAL not in source.path]
        for source in sources[:4] if options.quick else sources:
            runs += 1
            points += sum(len(source.series(name)) for name in source.names())
            told += [change for change in replay(profile(), source) if change.state == "firing"]
    kinds = {change.rule: sum(each.rule == change.rule for each in told) for change in told}
    beside = f"{len(told)} in {points} points of {runs} runs {kinds or ''}".strip()
    return [Figure("alert_false", what, len(told) / max(points, 1) * 1e4, "", 1, beside)]


def _weight() -> list[Figure]:
    """Return the memory that the engine adds to a process, and whether it loads what a watcher must not."""
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "def pss(): return next(int(l.split()[1]) for l in open('/proc/self/smaps_rollup') if l.startswith('Pss:'))\n"
        "from stepscope.alerts.evaluation.rule_engine import Engine\n"
        "from stepscope.alerts.rules.profiles import profile\n"
        "before = pss(); engine = Engine(profile())\n"
        "for second in range(200):\n"
        "    row = {'cpu/usage_ratio': 0.5, 'loss': 3.0 + second % 7 * 0.01, 'step_seconds': 0.1}\n"
        "    engine.sample(-1, row, second * 10**9)\n"
        "    engine.evaluate(second * 10**9)\n"
        "bad = [m for m in ('scipy', 'duckdb', 'apprise', 'starlette', 'textual') if m in sys.modules]\n"
        "print((pss() - before) / 1024, ','.join(bad) or '-')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    figure, bad = (*done.stdout.split(), "", "")[:2]
    beside = f"numpy and the windows; loads of what it must not: {bad}" if figure else done.stderr[-200:]
    value = float(figure) if figure and bad == "-" else None
    return [Figure("alert_memory", "memory that the engine adds to the watcher", value, "MiB", 50, beside)]
