"""The rules that come with Stepscope: each fires on what it is for, and says what to do."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from stepscope.alerts.rules.builtin import KINDS, LEAST_WAIT, THRESHOLDS, rules
from stepscope.alerts.rules.expression import FUNCTIONS
from stepscope.alerts.rules.profiles import PROFILES, profile, rules_of
from stepscope.analysis.diagnosis import composition
from stepscope.analysis.diagnosis.evidence import Evidence, Track
from stepscope.analysis.diagnosis.learning import learning
from stepscope.analysis.diagnosis.verdict import KINDS as DIAGNOSED
from stepscope.core.config import load
from stepscope.core.remedies import ALARMS, REMEDIES, remedy
from stepscope.core.settings import KEYS
from tests.alerts.rows import Rig, noise, states

ROOT = Path(__file__).resolve().parents[2]
GIB = 2.0**30


def rig_of(*names, profiled="default"):
    """Return an engine with some of the built-in rules."""
    return Rig(*[rule for rule in profile(profiled) if rule.name in names])


def fired(changes):
    """Return the names of the rules that fired."""
    return [change.rule for change in changes if change.state == "firing"]


def minutes(rig, count, **values):
    """Sample the machine once a second for so long; return what fired."""
    return fired(rig.machine(count * 60, **values))


@pytest.mark.promise("S1-067")
def test_loss_spike():
    """A spike is told with its step, level and height, at most one point late, and is over when the loss is back."""
    rig = rig_of("loss_spike")
    assert rig.values("loss", *noise(300, 3, 0.02)) == []
    told = rig.values("loss", 4.5, 4.2, *noise(20, 3, 0.02))
    assert states(told) == [("loss_spike", "firing"), ("loss_spike", "resolved")]
    assert told[0].step - 300 <= 1
    assert told[0].evidence["level"] == pytest.approx(3, abs=0.05)
    assert "gradient norm" in told[0].remedy


def test_loss_divergence():
    """A loss that leaves its best level and stays away is critical; one that comes back is not."""
    rig = rig_of("loss_divergence")
    assert fired(rig.values("loss", *noise(400, 2, 0.05))) == []
    assert fired(rig.values("loss", *noise(5, 9, 0.5), *noise(200, 2, 0.05))) == []
    assert fired(rig.values("loss", *(2 + np.linspace(0, 4, 300) + noise(300, 0, 0.05)).tolist())) == [
        "loss_divergence"
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite(value):
    """NaN and infinity in any loss are critical, at once."""
    rig = rig_of("not_finite")
    told = rig.log_many(
        [{"loss": 1.0, "val_loss": 1.0, "grad_norm": 1.0}, {"loss": value, "val_loss": 1.0, "grad_norm": 1.0}]
    )
    assert [(change.key, change.severity, change.step) for change in told] == [("loss", "critical", 1)]
    assert told[0].text.startswith("loss has been ")
    assert told[0].text.endswith(" since step 1")


@pytest.mark.promise("S2-056", "S4-051")
def test_loss_plateau():
    """A loss that no longer falls is told; one that falls slowly through its noise is not."""
    rig = rig_of("loss_plateau")
    falling = np.linspace(3, 2.7, 4000) + noise(4000, 0, 0.05)
    assert fired(rig.values("loss", *falling.tolist())) == []
    assert fired(rig.values("loss", *noise(3000, 2.7, 0.05, 1))) == ["loss_plateau"]


def test_loss_increase():
    """A loss that rises by 10 % beyond its noise, and stays, is told with its numbers; its way back resolves it."""
    rig = rig_of("loss_increase")
    assert fired(rig.values("loss", *noise(400, 2, 0.05))) == []
    told = rig.values("loss", *noise(200, 2.4, 0.05))
    assert fired(told) == ["loss_increase"]
    assert re.fullmatch(
        r"the loss has risen from 1.9\d* to 2.3\d* since step 400, by (19|20|21) %, and stays there", told[0].text
    )
    assert states(rig.values("loss", *noise(200, 2, 0.05))) == [("loss_increase", "resolved")]


def test_a_loss_is_judged_by_its_own_noise():
    """What a noisy loss does all the time is no rise, however large it is relative to its level."""
    noisy = np.random.default_rng(0).gamma(1.0, 0.04, 4000).tolist()
    assert fired(rig_of("loss_increase", "loss_divergence").values("loss", *noisy)) == []


def test_a_harder_stage_that_is_being_learned_is_no_divergence():
    """A loss that jumps up and falls again has not risen for good."""
    stage = 0.5 + 1.5 * np.exp(-np.arange(400) / 150)
    course = np.concatenate([stage, 1.4 * stage, 2.0 * stage]) + noise(1200, 0, 0.01)
    assert fired(rig_of("loss_increase", "loss_divergence").values("loss", *course.tolist())) == []


@pytest.mark.parametrize(("top", "rule"), [(2.5, "loss_increase"), (6.0, "loss_divergence")])
def test_alert_and_diagnosis_say_the_same_of_a_risen_loss(top, rule):
    """Of the same points, to the letter, and as grave; of a healthy run neither says anything."""
    ramp = [*noise(400, 2, 0.05), *(np.linspace(2, top, 200) + noise(200, 0, 0.05)), *noise(150, top, 0.05)]
    for values, expected in ((ramp, True), (noise(750, 2, 0.05), False)):
        rig = rig_of(rule)
        told = [change for value in values for change in rig.values("loss", value)]
        at = told[-1].step + 1 if told else len(values)
        steps = np.arange(at)
        track = Track(steps, steps * 1.0, np.asarray(values[:at]))
        found = [one for one in learning(Evidence(series={"loss": {0: track}})) if one.kind == "divergence"]
        assert [one.text for one in found] == [change.text for change in told]
        assert [one.severity for one in found] == [change.severity for change in told]
        assert bool(told) == expected


@pytest.mark.parametrize("both", [True, False])
def test_a_series_with_two_names_is_judged_once(both):
    """Under the name it was logged with; of `loss` and its alias `train/loss` as `loss`."""
    rig = Rig(*profile("default"))
    values = [*noise(400, 2, 0.05), *noise(300, 5, 0.05)]
    rows = [{"train/loss": value, **({"loss": value} if both else {})} for value in values]
    told = [change for change in rig.log_many(rows) if change.state == "firing"]
    names = [change.rule for change in told]
    assert "loss_divergence" in names
    assert len(names) == len(set(names)), names
    assert {change.key for change in told} == {"loss" if both else "train/loss"}


def test_what_was_logged_as_loss_is_what_a_rule_on_loss_sees():
    """An alias that came first gives the name up, whatever its own values are."""
    rig = Rig({"name": "high", "when": "loss > 3"})
    assert fired(rig.log_many([{"train_loss": 9.0, "loss": 1.0}] * 5)) == []
    assert fired(rig.log_many([{"train_loss": 1.0, "loss": 9.0}])) == ["high"]


@pytest.mark.promise("S1-064", "S2-057")
def test_gradient_exploding():
    """A gradient norm above 10 that is not usual is told; documents' profiles take 10 alone."""
    rig = rig_of("gradient_exploding")
    assert fired(rig.values("grad_norm", *noise(100, 1, 0.1))) == []
    assert fired(rig.values("grad_norm", 60, 80, 90)) == ["gradient_exploding"]
    usual = rig_of("gradient_exploding")
    assert fired(usual.values("grad_norm", *noise(300, 25, 2))) == []
    assert fired(rig_of("gradient_exploding", profiled="gpu-monitor").values("grad_norm", 1, 11)) == [
        "gradient_exploding"
    ]


def test_gradient_not_finite():
    """Gradients that stay infinite are told; a step that a loss scaler skips is not."""
    rig = rig_of("gradient_not_finite")
    assert fired(rig.values("grad_norm", 1.0, math.inf, 1.0, math.nan, math.inf, 1.0)) == []
    told = rig.values("grad_norm", *[math.inf] * 6)
    assert fired(told) == ["gradient_not_finite"]
    assert "has been inf for five points" in told[0].text


def test_gradient_vanishing():
    """A gradient norm of nothing for 100 points is told."""
    assert fired(rig_of("gradient_vanishing").values("grad_norm", *[1e-12] * 120)) == ["gradient_vanishing"]


@pytest.mark.promise("S1-065")
def test_learning_rate():
    """Too high, too low and frozen learning rates are told; a warm-up from 0 and a constant one are not."""
    names = ("learning_rate_too_high", "learning_rate_too_low", "learning_rate_frozen")
    assert fired(rig_of(*names).values("learning_rate", *[5.0] * 20)) == ["learning_rate_too_high"]
    assert fired(rig_of(*names).values("learning_rate", *[1e-9] * 120)) == ["learning_rate_too_low"]
    warm = rig_of(*names)
    assert fired(warm.values("learning_rate", *np.linspace(0, 1e-3, 200).tolist(), *[1e-3] * 3000)) == []
    assert fired(warm.values("learning_rate", *np.linspace(1e-3, 1e-6, 200).tolist(), *[1e-6] * 1200)) == [
        "learning_rate_frozen"
    ]


@pytest.mark.promise("S2-062")
def test_anomalies_of_the_programs_own_metrics():
    """A value that a metric never had is told by default; losses, times and schedules have rules of their own."""
    rig = rig_of("anomaly")
    rows = [{"reward": value, "step_seconds": 0.1, "lr": 1e-3} for value in noise(800, 5, 0.3)]
    assert rig.log_many(rows) == []
    told = rig.log_many([{"reward": value, "step_seconds": 9.0, "lr": 1.0} for value in [12.0] * 30])
    assert [(change.rule, change.key, change.severity) for change in told] == [("anomaly", "reward", "info")]
    assert re.fullmatch(r"reward averages 12 over 20 points; before, it was between 4.\d+ and 5.\d+", told[0].text)
    assert "data" in told[0].remedy


@pytest.mark.promise("S2-062")
@pytest.mark.parametrize("seed", range(6))
def test_healthy_metrics_have_no_anomaly(seed):
    """Learning, noise with heavy tails, waves, a lower learning rate that helps at once, evaluations now and then."""
    draw, at = np.random.default_rng(seed), np.arange(2500)
    learned = 0.9 * (1 - np.exp(-at / 500))
    step = np.where(at > 1500, 0.04, 0.0)
    for values in (
        learned + step + draw.normal(0, 0.02, 2500),
        learned * draw.gamma(2.0, 0.5, 2500),
        np.sin(at / 80) + draw.normal(0, 0.3, 2500),
        draw.standard_t(3, 2500),
        np.where(at % 100 == 99, 3.0, 1.0) + draw.normal(0, 0.1, 2500),
        np.cumsum(draw.normal(0, 0.01, 2500)),
    ):
        assert fired(rig_of("anomaly").values("my_metric", *values.tolist())) == []


@pytest.mark.parametrize("chunk", [50, 500, 2000])
def test_what_drifts_has_no_anomaly_however_fast_it_is_logged(chunk):
    """Counters, ramps, falls and waves are usual, also where hundreds of their points arrive at once."""
    draw, at = np.random.default_rng(0), np.arange(6000)
    for values in (
        at * 1.0,
        at * 0.01 + draw.normal(0, 1, 6000),
        10 * np.exp(-at / 1500) + draw.normal(0, 0.1, 6000),
        np.sin(at / 300) + draw.normal(0, 0.1, 6000),
    ):
        rig = rig_of("anomaly")
        pieces = [values[begin : begin + chunk] for begin in range(0, 6000, chunk)]
        assert [rig.log_many([{"mine": value} for value in piece.tolist()]) for piece in pieces] == [[] for _ in pieces]


@pytest.mark.promise("S0-079", "S2-062")
@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        ("anomaly", "anomaly_detection", {"anomaly"}),
        ("trend", "trend_analysis", {"loss_plateau", "memory_leak", "gpu_memory_leak", "disk_filling"}),
        ("regression", "performance_regression", {"training_speed"}),
    ],
)
def test_analysis_can_be_turned_off(ours, theirs, names):
    """Each switch, in the documents' spelling as in ours, turns its rules off and no others; they are on by default."""
    whole = {rule.name for rule in rules_of({})[0]}
    assert names <= whole
    for spelling in (f"watcher.analysis.{ours}", f"monitoring.analysis.{theirs}"):
        for wanted in (True, False):
            config = load(settings={spelling: wanted})
            values = {path: config.values[path] for path in config.sources}
            assert whole - {rule.name for rule in rules_of(values)[0]} == (set() if wanted else names)
            assert config.notices == ()


@pytest.mark.promise("S4-051")
def test_training_speed():
    """Half of the speed for 20 steps is told with what a step takes now; the end of it, too."""
    rig = rig_of("training_speed")
    assert fired(rig.values("step_seconds", *noise(300, 0.1, 0.005), 3.0, *noise(20, 0.1, 0.005))) == []
    told = rig.values("step_seconds", *noise(500, 0.25, 0.01))
    assert states(told) == [("training_speed", "firing")]
    assert re.fullmatch(
        r"a step takes 2\d\d(\.\d)? ms \(median of 20\): training has lost 50 % of its speed or more", told[0].text
    )
    assert states(rig.values("step_seconds", *noise(40, 0.1, 0.005))) == [("training_speed", "resolved")]


def test_one_point_among_many_that_are_none_is_no_speed():
    """A series that is NaN but for a few points tells no level, and no sentence has a NaN in it."""
    rig = rig_of("training_speed")
    sparse = [0.1 if at % 30 == 0 else math.nan for at in range(600)]
    assert fired(rig.values("step_seconds", *sparse, 5.0, *[math.nan] * 60)) == []


def test_short_steps_may_wait_for_their_data():
    """Below the floor that the diagnosis has, a share of a step is nothing to tell."""
    assert LEAST_WAIT == composition.FLOOR
    rig = rig_of("data_starvation")
    assert fired(rig.log_many([{"phase/data": 0.0006, "step_seconds": 0.001}] * 400, seconds=0.001)) == []


def test_data_starvation():
    """Waiting for data for a third of the step is told."""
    rig = rig_of("data_starvation")
    assert fired(rig.log_many([{"step_seconds": 0.1, "phase/data": 0.01}] * 300)) == []
    told = rig.log_many([{"step_seconds": 0.1, "phase/data": 0.045}] * 300)
    assert fired(told) == ["data_starvation"]
    assert "workers" in told[0].remedy


@pytest.mark.promise("S1-063", "S2-055", "S3-036")
def test_processors_and_memory():
    """Busy processors and full memory are told after a minute, not at once."""
    rig = rig_of("cpu_usage", "memory_pressure")
    assert minutes(rig, 1, cpu__usage_ratio=1.0, memory__used_ratio=0.5) == []
    assert sorted(minutes(rig, 3, cpu__usage_ratio=1.0, memory__used_ratio=0.95)) == ["cpu_usage", "memory_pressure"]


@pytest.mark.promise("S1-066", "S2-054", "S3-038")
def test_gpu_temperature():
    """More than 80 °C for a minute is told, per GPU; a moment is not."""
    rig = rig_of("gpu_temperature")
    assert minutes(rig, 2, gpu__0__temperature_celsius=79.0) == []
    rig.sample(gpu__0__temperature_celsius=90.0)
    assert minutes(rig, 1, gpu__0__temperature_celsius=79.0) == []
    assert minutes(rig, 2, gpu__0__temperature_celsius=84.0) == ["gpu_temperature"]


@pytest.mark.promise("S3-035", "S3-046")
def test_gpu_underused():
    """A GPU that idles for minutes is told once, with hysteresis; the span and the share are thresholds."""
    rig = rig_of("gpu_underused")
    assert minutes(rig, 6, gpu__0__utilization_ratio=0.9) == []
    assert minutes(rig, 6, gpu__0__utilization_ratio=0.2) == ["gpu_underused"]
    assert minutes(rig, 6, gpu__0__utilization_ratio=0.5) == []
    short = Rig(*[rule for rule in profile("default", {"gpu_idle_seconds": 30}) if rule.name == "gpu_underused"])
    assert minutes(short, 1, gpu__0__utilization_ratio=0.2) == ["gpu_underused"]


def test_gpu_memory_and_throttling():
    """A card that is full, and one that lowers its clocks, are told."""
    rig = rig_of("gpu_memory", "gpu_throttled")
    row = {"gpu__0__memory_used_bytes": 79 * GIB, "gpu__0__memory_total_bytes": 80 * GIB}
    reasons = ("hw_thermal", "sw_thermal", "hw_slowdown", "power_brake")
    row |= {f"gpu__0__throttle_{why}": float(why == "hw_thermal") for why in reasons}
    assert sorted(minutes(rig, 2, **row)) == ["gpu_memory", "gpu_throttled"]


@pytest.mark.promise("S3-037")
def test_disks():
    """Waiting for disks, a nearly full disk and one that fills up are told."""
    rig = rig_of("io_wait", "io_pressure", "disk_usage")
    told = minutes(rig, 3, cpu__iowait_ratio=0.4, pressure__io_full_ratio=0.4, disk__used_ratio=0.97)
    assert sorted(told) == ["disk_usage", "io_pressure", "io_wait"]
    filling = rig_of("disk_filling")
    told = fired(filling.machine(1200, disk__free_bytes=lambda at: 20 * GIB - at * 0.01 * GIB))
    assert told == ["disk_filling"]


@pytest.mark.promise("S1-003", "S4-051")
def test_memory_that_leaks_is_told_with_the_time_left():
    """A process that grows without end is told with the time until its limit; a steady one is not."""
    rig = rig_of("memory_leak", "gpu_memory_leak")
    told = rig.machine(
        1500,
        process__0__tree_memory_bytes=lambda at: 4 * GIB + at * 2e6,
        process__1__tree_memory_bytes=4 * GIB,
        memory__total_bytes=16 * GIB,
        gpu__0__memory_allocated_bytes=lambda at: GIB + at * 1e6,
        gpu__0__memory_total_bytes=8 * GIB,
    )
    texts = {change.rule: change.text for change in told if change.state == "firing"}
    assert texts["memory_leak"].startswith("memory of rank 0 grows by")
    assert "full in" in texts["memory_leak"]
    assert "GPU 0" in texts["gpu_memory_leak"]
    assert len(told) == 2


@pytest.mark.parametrize("counter", ["stepscope__drops_total", "stepscope__drops_total__rank3"])
def test_rows_that_are_dropped(counter):
    """Lost rows are told, of every rank."""
    rig = rig_of("rows_dropped")
    told = fired(rig.machine(60, **{counter: lambda at: max(0, at - 40)}))
    assert told == ["rows_dropped"]


def test_a_sink_that_is_behind():
    """Ten minutes behind is told with the sink and how late it is; once it has caught up, that is over."""
    rig = rig_of("sink_behind")
    assert rig.machine(60, **{"stepscope__sink__my-mlflow__behind_seconds": 599.0}) == []
    told = rig.machine(60, **{"stepscope__sink__my-mlflow__behind_seconds": 605.0})
    assert [(change.severity, change.text) for change in told] == [("warning", "sink my-mlflow is 10 min 5 s behind")]
    assert "`stepscope doctor`" in told[0].remedy
    assert "nothing is lost" in told[0].remedy
    assert states(rig.machine(10, **{"stepscope__sink__my-mlflow__behind_seconds": 2.0})) == [
        ("sink_behind", "resolved")
    ]


def test_a_sink_that_refuses_rows():
    """Rows that a sink refuses for good are told with their number; a number that no longer grows is not."""
    rig = rig_of("sink_refused")
    assert rig.machine(120, stepscope__sink__wandb__refused_rows=3.0) == []
    told = rig.machine(10, stepscope__sink__wandb__refused_rows=7.0)
    assert [change.text for change in told] == ["sink wandb refuses rows, 7 so far"]
    assert "refused.jsonl" in told[0].remedy
    assert states(rig.machine(120, stepscope__sink__wandb__refused_rows=7.0)) == [("sink_refused", "resolved")]


def test_samplers_that_fail():
    """A source that fails blinds the rules on it: that is told, until it is back."""
    rig = rig_of("sampler_blind", "gpu_driver_hung", "oom_kill", "gpu_ecc")
    assert fired(rig.event("sampler_failed", None, sampler="nvidia", error="no driver")) == ["sampler_blind"]
    assert states(rig.event("sampler_back", None, sampler="nvidia")) == [("sampler_blind", "resolved")]
    assert fired(rig.event("gpu_driver_hung", None, waited_seconds=12.0)) == ["gpu_driver_hung"]
    assert fired(rig.event("cgroup_oom_kill", None, count=2, total=2)) == ["oom_kill"]
    assert fired(rig.event("ecc_uncorrected", None, gpu=1, errors=3)) == ["gpu_ecc"]


@pytest.mark.promise("S0-083", "S1-011")
def test_every_rule_says_what_to_do():
    """No built-in rule is without a remedy and a sentence that says what it is for."""
    for rule in rules():
        assert rule.help.endswith("."), rule.name
        assert rule.remedy or rule.detect in {"leak", "gpu_leak", "disk_full"}, rule.name  # these bring their own
        assert rule.message or rule.detect, rule.name


def test_every_function_is_documented():
    """The page has a row for each function of a condition, and for no other."""
    [page] = (ROOT / "docs").rglob("alerts.md")
    section = page.read_text(encoding="utf-8").partition("\n## Conditions")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)\(", section, re.MULTILINE)) == sorted(FUNCTIONS)


@pytest.mark.promise("X-10")
def test_the_thresholds_are_accepted_and_in_force():
    """The settings and the default profile have the same thresholds with the same defaults."""
    accepted = {
        path.removeprefix("alerting.thresholds."): key.default
        for path, key in KEYS.items()
        if path.startswith("alerting.thresholds.")
    }
    assert accepted == THRESHOLDS
    settings = {f"alerting.thresholds.{name}": value for name, value in accepted.items()}
    assert load(settings=settings).notices == ()
    assert rules_of(settings) == (profile("default"), [])
    assert rules_of({}) == (profile("default"), [])


def test_every_rule_tells_the_remedy_of_the_diagnosis():
    """A rule about a kind of finding prints that kind's remedy; the others print theirs, from the same place."""
    known = {**REMEDIES, **ALARMS}
    found = {rule.name: rule.remedy for name in PROFILES for rule in profile(name)}
    assert found == {name: known[KINDS.get(name, name)] for name in found}
    assert not KINDS.keys() & ALARMS.keys()
    assert {key.partition("/")[0] for key in KINDS.values()} <= set(DIAGNOSED)
    assert {name for name in found if name in DIAGNOSED} <= KINDS.keys(), "a rule with the name of a kind is about it"


def test_an_alert_prints_the_sentence_that_the_diagnosis_prints():
    """With the step filled in, to the letter; by a condition, by a detector and by an event."""
    spiked = rig_of("loss_spike")
    spiked.values("loss", *noise(300, 3, 0.02))
    told = spiked.values("loss", 4.5, 4.2)[0]
    assert told.remedy == remedy("loss_spike", step=told.step)
    broken = rig_of("not_finite").values("loss", 1.0, math.nan)[0]
    assert broken.remedy == remedy("non_finite", step=1)
    (hung,) = rig_of("hang").event("hung", 0, why="nothing moves")
    assert hung.remedy == remedy("hang")
