"""What changed, what else moved then, what could not be known, and that no numbers break any of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.diagnosis.changes import changes, slow_steps
from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps, Track
from stepscope.analysis.diagnosis.periods import period_of
from stepscope.analysis.diagnosis.verdict import KINDS, findings, missing, summary
from tests.analysis.diagnosis_rig import HEALTHY, busy, evidence, falling, steps, track


def test_a_change_names_the_phase_the_sample_and_the_event_that_moved_with_it() -> None:
    """Ranked: first what explains the seconds."""
    data = np.full(400, 0.002)
    data[250:] = 0.09
    run = steps(HEALTHY | {"data": data}, count=400)
    moment = float(run.end[250])
    when = np.linspace(float(run.end[0]), float(run.end[-1]), 60)
    disk = Track(np.arange(60), when, np.where(when < moment, 0.02, 0.9))
    events = [{"kind": "worker_died", "time": moment - 0.01, "step": 250}]
    (found,) = changes(evidence(run, series={"pressure/io_some_stalled_ratio": disk}, events=events))
    assert found["metric"] == "step_seconds"
    assert abs(found["step"] - 250) <= 1
    assert [one["name"] for one in found["moved"][:2]] == ["phase/data", "pressure/io_some_stalled_ratio"]
    assert found["events"][0]["kind"] == "worker_died"
    assert "data 2 ms → 90 ms" in found["text"]


def test_changes_are_told_by_what_they_cost_and_a_stretch_once() -> None:
    """Four steps of noise are no change, and the end of a slow stretch belongs to its beginning."""
    data = np.full(600, 0.002)
    data[100:104], data[300:350], data[500:] = 0.02, 0.14, 0.05
    found = changes(evidence(steps(HEALTHY | {"data": data}, count=600)))
    assert [(one["step"], one["until"]) for one in found] == [(300, 350), (500, None)]
    assert [round(one["cost_seconds"]) for one in found] == [7, 5]
    assert "recovered at step 350" in found[0]["text"]


def test_a_last_step_that_stalls_is_a_slow_step_and_no_change() -> None:
    """Nobody can say that it lasts."""
    data = np.full(400, 0.002)
    data[-2:] = 0.9
    run = evidence(steps(HEALTHY | {"data": data}, count=400))
    assert changes(run) == []
    assert slow_steps(run)[0]["step"] in (398, 399)


def test_neighbours_change_all_phases_alike_and_are_left_out() -> None:
    """On a busy machine only what changed by itself is the run's own."""
    alike = {name: np.repeat([1.0, 4.0, 1.0], [150, 100, 150]) * seconds for name, seconds in HEALTHY.items()}
    throughput = {"samples_per_second": track(np.repeat([100.0, 25.0, 100.0], [150, 100, 150]))}
    assert changes(evidence(steps(alike, count=400), series=busy())) == []
    assert changes(evidence(steps(alike, count=400), series=throughput)) != []
    own = alike | {"data": np.repeat([0.001, 0.004, 0.6], [150, 100, 150])}
    (found,) = changes(evidence(steps(own, count=400), series=busy()))
    assert (found["step"], found["moved"][0]["name"]) == (250, "phase/data")


def test_a_slow_step_is_told_with_what_it_did() -> None:
    """One sentence has the step, its time, the phase and the disk."""
    save = np.full(400, np.nan)
    save[300] = 2.9
    run = steps(HEALTHY | {"checkpoint": save}, count=400)
    when = np.linspace(float(run.end[0]), float(run.end[-1]), 60)
    slow = (when > float(run.end[299])) & (when < float(run.end[300]) + 0.2)
    found = slow_steps(
        evidence(run, series={"pressure/io_some_stalled_ratio": Track(np.arange(60), when, np.where(slow, 0.8, 0.0))})
    )
    assert found[0]["step"] == 300
    assert "2.9 s in checkpoint while processes waited for disks" in found[0]["text"]


def test_a_busy_machine_stops_steps_that_are_not_told_as_slow() -> None:
    """Only a step with a cause of its own, or one that costs 1 % of the run, is worth a line there."""
    save, forward = np.full(800, np.nan), np.full(800, 0.01)
    save[300], forward[[50, 90, 200]] = 0.4, 0.2
    run = steps(HEALTHY | {"checkpoint": save, "forward": forward}, count=800)
    assert [one["step"] for one in slow_steps(evidence(run, series=busy()))] == [300]
    assert len(slow_steps(evidence(run))) == 4


def test_what_is_not_known_is_named_with_how_to_know_it() -> None:
    """An empty run misses everything, and finds nothing."""
    empty = Evidence()
    assert findings(empty) == []
    assert changes(empty) == slow_steps(empty) == []
    assert {"step_seconds", "loss", "memory", "machine"} <= {one["signal"] for one in missing(empty)}
    known = evidence(steps(), series={"loss": falling(), "eval_loss": [1.0] * 9, "cpu/usage_ratio": [0.5] * 9})
    assert {one["signal"] for one in missing(known)} == {"memory", "gpu"}
    foreign = Evidence(foreign="mllog")
    assert all("mllog" in one["remedy"] for one in missing(foreign) if one["signal"] == "loss")


def test_a_rank_with_phases_represents_a_slower_one_without() -> None:
    """Phases of one rank are enough to say where the time goes, if it ran for most of the time."""
    plain = steps({"other": 0.06}, rank=1)
    plain = replace(plain, phases={})
    whole = evidence(steps(), plain)
    assert [whole.leader] == [whole.ranks[0]]
    assert "phase/*" not in {one["signal"] for one in missing(whole)}
    short = evidence(steps(count=20), plain)
    assert short.leader is plain


def test_a_rhythm_is_heard_with_some_beats_missing_or_added_and_not_in_noise() -> None:
    """What chance sets evenly is rare."""
    beat = np.arange(10.0, 400, 25)
    assert period_of(beat, 2) == 25
    assert period_of(np.delete(beat, [3, 8]), 2) == 25
    assert period_of(np.sort(np.append(beat, [33, 301])), 2) == 25
    assert period_of(np.arange(40.0), 2) is None
    chance = np.random.default_rng(0)
    drawn = [np.sort(chance.choice(400, 6, replace=False)).astype(float) for _ in range(500)]
    heard = sum(period_of(places, 2) is not None for places in drawn)
    assert heard < 25


numbers = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60)


@settings(max_examples=60, deadline=None)
@given(seconds=numbers, data=numbers, loss=numbers, memory=numbers)
def test_no_numbers_break_a_diagnosis(
    seconds: list[float], data: list[float], loss: list[float], memory: list[float]
) -> None:
    """Empty, constant, short, huge and non-finite: never an exception, always known words and plain data."""
    count = min(len(seconds), len(data))
    values = np.abs(np.nan_to_num(np.array(seconds[:count]), posinf=1e9))
    phases = {"data": np.array(data[:count]), "forward": values / 2}
    run = RankSteps(0, np.arange(count), np.cumsum(values.clip(0, 1e12)), values, phases)
    whole = evidence(
        run, series={"loss": track(loss), "memory/resident_bytes": track(memory), "learning_rate": track(loss)}
    )
    with np.errstate(all="ignore"):
        found = findings(whole)
        told = [one.facts() for one in found], changes(whole), slow_steps(whole), missing(whole), summary(found, whole)
    assert {one.kind for one in found} <= set(KINDS)
    json.dumps(told)
    sentences = [told[4], *(one.text + one.remedy + one.expected_gain for one in found)]
    assert not [text for text in sentences if re.search(r"\bnan\b|\binf\b|None|\{", text)]
