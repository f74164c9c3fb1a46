from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.figure import ONE_OVER, Figure, table
from bench.importing import FORMATS
from bench.killing import cases, compare, value_of
from bench.loop import interval
from bench.peers import PEERS
from bench.reading import figures
from bench.standing import slowed

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = {
    "bursts": {"mean_1", "lost_1", "mean_10", "lost_10"},
    "choices": {"sampling", "flips_duckdb", "flips_ours"},
    "hotpath": {"log", "step", "log_over_tensorboard", "log_over_wandb"},
    "loop": {"loop", "loop_aa", "loop_empty"},
    "start": {"import", "modules", "init", "exit", "pipe"},
    "kills": {"lost", "duplicated", "altered", "not_killed"},
    "peers_loss": {f"lost_by_{name}" for name in PEERS},
    "size": {f"size_{kind}{part}" for kind in ("f32", "f64", "durations") for part in ("", "_all")},
    "memory": {"growth", "watcher_cpu", "watcher_pss", "sealer"},
    "reading": {"one_series", "list", "overview", "overview_equal"},
    "gradients": {"grad_norm", "grad_norm_idle", "grad_norm_clipped"},
    "catching": {"catch_wandb", "catch_tensorboard", "catch_loop", "catch_loop_aa"},
    "leaks": {
        *("leaks_missed", "leaks_false", "leaks_missed_drawn", "leaks_false_drawn", "leaks_own", "forecast_outside"),
    },
    "detection": {
        *("changes_worse", "changes_planted", "changes_restless", "anomalies_over_best", "anomalies_halves"),
        *("anomalies_default", "anomalies_quiet"),
        *("anomalies_start", "spikes_missed", "spikes_late", "spikes_false"),
        *("million_trend", "million_anomalies", "million_changes", "million_spikes"),
    },
    "comparing": {
        *("compare_wrong", "compare_lengths", "compare_false", "compare_unmixed", "gate_real", "gate_real_3"),
        *("gate_equal", "gate_3", "gate_10", "gate_turns_equal", "gate_turns_3", "gate_turns_10"),
        *("gate_after_equal", "gate_after_3", "gate_after_10", "gate_drawn_3", "gate_drawn_10"),
    },
    "terminal": {"top_cpu", "top_memory", "top_traffic", "report_size", "report_spikes"},
    "exporting": {f"export_{form}" for form in ("csv", "wide", "json", "parquet", "arrow", "tensorboard")},
    "importing": {f"import_{form}{part}" for form in FORMATS for part in ("", "_memory")},
    "wandb_drop_in": {"wandb_drop_in"},
    "alerting": {"alert_cost", "alert_missed", "alert_late", "alert_false", "alert_memory"},
    "traces": {
        *("trace_failures", "trace_off", "trace_tracelens", "trace_data_0", "trace_data_4", "trace_time"),
        *("trace_memory", "trace_ranks_time", "trace_large"),
    },
    "page": {
        *("page_weight", "page_open", "page_zoom", "page_zoom_spikes", "page_live_browser", "page_live_server"),
        *("page_open_tensorboard", "page_live_growth", "page_live_counts", "page_live_server_memory"),
        *("page_pixel", "page_fifty", "page_fifty_trainer"),
    },
    "serving": {
        *("serving_first", "serving_memory", "serving_curves", "serving_zoom", "serving_pages"),
        *("serving_tensorboard", "serving_aim"),
    },
    "notifying": {"alert_death", "alert_lost", "alert_twice"},
    "gauntlet": {"gauntlet_wrong", "gauntlet_false", "gauntlet_gain"},
    "diagnosing": {
        *("diagnose_seconds", "diagnose_memory", "diagnose_wrong", "straggler_error", "straggler_missed"),
    },
    "ledger": {"ledger_sum", "ledger_watch", "ledger_class"},
    "phases": {"planted", "planted_elsewhere"},
    "following": {f"follow_{what}_{kind}" for what in ("delay", "share") for kind in ("tfevents", "wandb", "jsonl")},
    "sinks": {
        *("sink_loop_take", "sink_loop_take_aa", "sink_loop_hang", "sink_loop_hang_aa", "sink_end", "sink_end_most"),
        *(
            f"sink_{part}_{what}_{sink}"
            for part in ("storm", "kills")
            for what in ("missing", "twice")
            for sink in ("otlp", "mlflow", "prometheus")
        ),
        *("sink_storm_seconds", "sink_kills_seconds"),
        *(f"sink_rate_{sink}{part}" for sink in ("mlflow", "sqlite", "prometheus", "otlp") for part in ("", "_memory")),
    },
    "torch_loop": {"torch_2ms", "torch_2ms_aa", "torch_2ms_traceml", "torch_50ms", "torch_50ms_aa"},
}


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("group", EXPECTED)
def test_every_figure_is_produced(group, tmp_path):
    """Each group prints its figures; one without a value says what is not installed, or not started."""
    command = [sys.executable, "-m", "bench", group, "--quick", "--kills", "4", "--json", str(tmp_path / "figures")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures").read_text())
    assert {figure["key"] for figure in found} == EXPECTED[group]
    reasons = ("not installed", "not started")
    without = [figure["beside"] for figure in found if figure["value"] is None]
    assert all(any(reason in beside for reason in reasons) for beside in without)
    assert f"$ python -m bench {group}" in done.stdout


def test_unknown_group_is_refused():
    """A group that does not exist is a usage error that names those that do."""
    command = [sys.executable, "-m", "bench", "speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "hotpath" in done.stderr


@pytest.mark.parametrize(
    ("value", "limit", "verdict"),
    [(1.0, 2.0, "pass"), (3.0, 2.0, "MISS"), (None, 2.0, "not run"), (3.0, None, ""), (0.0, 0.0, "pass")],
)
def test_verdict_compares_value_and_limit(value, limit, verdict):
    """A figure passes at or below its limit; without one it has no verdict."""
    assert Figure("key", "what", value, "s", limit).verdict == verdict


def test_table_shows_ratios_as_fractions():
    """A ratio reads as one over a whole number, value and limit alike."""
    text = table([("hotpath", Figure("ratio", "log of peer", 1 / 150, ONE_OVER, 1 / 80))])
    assert "1/150" in text
    assert "≤ 1/80" in text


def test_kills_are_spread_evenly():
    """Twelve kills meet every rate and every victim once."""
    assert len({(case.rate, case.victim) for case in cases(12)}) == 12
    assert len({case.victim for case in cases(4)}) == 4


def rows(count):
    """Return acknowledged rows, and what a perfect reader gives of them."""
    known = {step: value_of(1, step) for step in range(count)}
    pairs = list(known.items())
    read = {"value": pairs, "opposite": [(at, -value) for at, value in pairs], "number": [(at, at) for at in known]}
    return known, {name: [(at, float(value)) for at, value in column] for name, column in read.items()}


def test_comparison_accepts_what_was_acknowledged():
    """Rows read back once and bit for bit, NaN and infinities too, are neither lost, duplicated nor altered."""
    known, read = rows(200)
    assert any(math.isnan(value) or math.isinf(value) for value in known.values())
    assert compare(known, read, 1) == (0, 0, 0)


def test_comparison_accepts_the_row_that_was_being_logged():
    """The one row that no acknowledgement was written for may be there, but only with its own value."""
    known, read = rows(20)
    known.pop(19)
    assert compare(known, read, 1) == (0, 0, 0)
    read["value"][19] = (19, 1.0)
    assert compare(known, read, 1) == (0, 0, 1)


def test_comparison_counts_each_kind_of_harm():
    """A missing row is lost, a second one duplicated, another value or an invented row altered."""
    known, read = rows(20)
    read["value"][3] = (3, 0.25)
    read["number"].append((5, 5.0))
    del read["opposite"][7]
    read["number"].append((40, 40.0))
    assert compare(known, read, 1) == (1, 1, 2)


def test_interval_of_equal_blocks_contains_zero():
    """Where nothing differs the interval holds 0; a slow-down of 5 % lies in its own."""
    noise = np.random.default_rng(0).normal(1.0, 0.02, 300)
    _, low, high = interval(noise)
    assert low <= 0 <= high
    _, low, high = interval(noise * 1.05)
    assert low <= 5 <= high


def test_raw_figures_pass_over_what_is_not_finite():
    """The plain reckoning that buckets are compared with leaves NaN out of extremes and mean, and counts it."""
    found = figures(np.array([1.0, np.nan, 3.0, 5.0, -1.0]), np.array([0, 3]))
    assert found["nonfinite"].tolist() == [1, 0]
    assert found["min"].tolist() == [1.0, -1.0]
    assert found["mean"].tolist() == [2.0, 2.0]
    assert found["last"].tolist() == [3.0, -1.0]


@pytest.mark.parametrize("planted", [0.0, 0.3])
def test_what_slows_some_steps_is_told_apart_from_what_slows_all(planted):
    """A cause that slows one step in 25 is found by its size, on a machine whose speed wanders by tens of percent."""
    draw, count = np.random.default_rng(1), 40_000
    seconds = 2e-3 * (1 + 0.15 * np.cumsum(draw.normal(size=count)) / math.sqrt(count))
    seconds *= 1 + 0.03 * np.abs(draw.standard_t(3, size=count))
    ran = np.arange(count) % 100 < 4
    seconds[ran] *= 1 + planted
    middle, low, high = slowed(seconds, ran)
    assert low < middle < high
    assert middle == pytest.approx(4 * planted, abs=0.05)


def test_driver_without_a_test_runner():
    """The benchmarks run where the extra `bench` alone is installed: their fake driver needs no pytest."""
    program = "import sys; sys.modules['pytest'] = None; import tests.nvml.build"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
