"""Old runs replayed: what would have fired, how late, for nothing how often; and thresholds from healthy ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepscope.alerts.rules.backtest import backtest, replay
from stepscope.alerts.rules.builtin import THRESHOLDS
from stepscope.alerts.rules.profiles import profile
from stepscope.alerts.rules.rule import rule_of
from stepscope.alerts.rules.suggest import suggest
from stepscope.analysis.series.spikes import spikes
from stepscope.importers import formats
from stepscope.importers.imported import Imported, series_of

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MIXTRAL = DATA / "megatron-golden" / "mixtral__mixtral_8x7b_alltoall_tp2pp4ep4_release"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not on this machine")


def run_of(**columns):
    """Return a run with these metrics, two steps a second."""
    found = {}
    for name, values in columns.items():
        steps = np.arange(len(values))
        found[name] = series_of(name, steps, values, steps * 0.5)
    return Imported("made", "made", found)


def noise(count, level, width, seed=0):
    """Return a level with noise."""
    return np.random.default_rng(seed).normal(level, width, count)


def test_a_backtest_counts_delays_and_false_alarms():
    """Alerts near a known incident belong to it; the others are false, per 10 000 steps."""
    loss = noise(1000, 3, 0.01)
    loss[500:504] += 2
    loss[800] = 9
    found = backtest(
        [rule_of({"name": "high", "when": "loss > 4", "for": "2 points"}), *profile()],
        [("a", run_of(loss=loss))],
        {"a": [500, 900]},
    )
    by_rule = {row["rule"]: row for row in found["rules"]}
    assert by_rule["high"] == {
        "rule": "high",
        "fired": 1,
        "told": 1,
        "false": 0,
        "false_per_10000_steps": 0.0,
        "delay_steps": 1,
    }
    assert by_rule["loss_spike"]["false"] == 1
    assert by_rule["loss_spike"]["false_per_10000_steps"] == 10.0
    assert found["runs"][0]["missed"] == [900]
    json.dumps(found)


def test_nobody_knows_what_was_right_in_a_run_without_incidents():
    """Only runs that are named, with their incidents or as healthy, tell which alerts were false."""
    rule = rule_of({"name": "high", "when": "loss > 4"})
    runs = [("a", run_of(loss=[1.0, 9.0, 1.0])), ("b", run_of(loss=[1.0, 9.0, 1.0]))]
    (unknown,) = backtest([rule], runs)["rules"]
    assert (unknown["fired"], unknown["false"], unknown["false_per_10000_steps"]) == (2, None, None)
    (known,) = backtest([rule], runs, {"a": []})["rules"]
    assert (known["fired"], known["false"], known["false_per_10000_steps"]) == (2, 1, pytest.approx(1e4 / 3))


def test_attempts_and_ranks_are_replayed_apart():
    """A new attempt begins with empty windows; each rank has its own alerts."""
    steps = np.arange(20)
    series = series_of("loss", np.concatenate([steps, steps]), [11.0] * 40, np.arange(40.0))
    series.attempt[20:] = 1
    rank = series_of("x", steps, [11.0] * 20, steps * 1.0, rank=3)
    source = Imported("", "", {"loss": series, "x": rank})
    rules = [rule_of({"name": "a", "when": "loss > 10"}), rule_of({"name": "b", "when": "x > 10"})]
    told = replay(rules, source)
    assert [(change.rule, change.rank) for change in told] == [("a", 0), ("b", 3), ("a", 0)]


def test_a_run_without_times_has_a_step_a_second():
    """Durations of rules then count steps."""
    source = Imported("", "", {"loss": series_of("loss", np.arange(0, 100, 10), [11.0] * 10)})
    (told,) = replay([rule_of({"name": "a", "when": "loss > 10", "for": "30s"})], source)
    assert told.step == 30


def test_a_clock_that_was_reset_moves_nothing():
    """The order of the points is that of recording, whatever their clock says."""
    time = np.concatenate([np.arange(10.0, 20.0), np.arange(0.0, 300.0)])
    loss = np.concatenate([np.linspace(10, 4, 10), noise(300, 4, 0.01)])
    source = Imported("", "", {"loss": series_of("loss", np.arange(310), loss, time)})
    assert replay(profile(), source) == []


def test_an_empty_run_tells_nothing():
    """A run without metrics, or with none that a rule wants, is no error."""
    assert replay(profile(), Imported("", "", {})) == []
    assert replay(profile(), run_of(other=[1.0, 2.0])) == []


@needs_data
def test_real_spikes_through_the_whole_engine():
    """Every spike of a real run is told by the engine at the very point at which the analysis knows it."""
    (source,) = formats.read(str(MIXTRAL / "golden_values_dev_dgx_h100.json"))
    series = source.series("loss")
    known = [int(series.step[each.told]) for each in spikes(series.value).spikes]
    told = [
        change.step for change in replay(profile(), source) if (change.rule, change.state) == ("loss_spike", "firing")
    ]
    assert told == known
    assert len(told) >= 6


@needs_data
@pytest.mark.parametrize("folder", ["hf-trainer-state", "mlperf-v5.1-runs"])
def test_real_healthy_runs_are_silent(folder):
    """The default profile tells nothing about runs that went well."""
    for source in formats.read(str(DATA / folder)):
        assert [change.text for change in replay(profile(), source)] == []


def test_suggestions_lie_beyond_what_healthy_runs_reach():
    """A threshold from healthy runs is beyond what they reach, with a reason; without data there is none."""
    healthy = run_of(loss=noise(1000, 3, 0.05), grad_norm=noise(1000, 20, 1), step_seconds=noise(1000, 0.1, 0.002))
    found = {row["key"].rpartition(".")[2]: row for row in suggest([("a", healthy)])}
    assert set(found) == {"loss_increase", "training_speed", "grad_norm_exploded"} <= set(THRESHOLDS)
    assert 23 < found["grad_norm_exploded"]["value"] < 30
    assert "1000 points in 1 healthy runs" in found["grad_norm_exploded"]["reason"]
    rules = profile("default", {key: row["value"] for key, row in found.items()})
    assert replay(rules, healthy) == []
    assert suggest([("b", run_of(loss=[1.0] * 10))]) == []


def test_suggestions_for_the_machine():
    """Ratios stay below 1, a GPU's use is a floor."""
    columns = {"gpu/0/utilization_ratio": noise(500, 0.8, 0.02), "memory/used_ratio": np.full(500, 0.98)}
    columns |= {"phase/data": np.full(500, 0.01), "step_seconds": np.full(500, 0.1)}
    columns |= {"gpu/0/memory_used_bytes": np.full(500, 6e9), "gpu/0/memory_total_bytes": np.full(500, 8e9)}
    found = {row["rule"]: row["value"] for row in suggest([("a", run_of(**columns))])}
    assert found["gpu_underused"] < 0.75
    assert found["memory_pressure"] == 0.99
    assert found["gpu_memory"] == pytest.approx(0.825)
