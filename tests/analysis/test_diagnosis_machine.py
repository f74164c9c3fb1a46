"""Ends, stalls, memory and the machine, from the events and samples that tell of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.analysis.diagnosis.machine import busy as busy_note
from stepscope.analysis.diagnosis.verdict import findings, primary
from stepscope.analysis.first_error.evidence import EndedRank, ErrorEvidence
from stepscope.analysis.first_error.judge import first_error
from stepscope.core.remedies import remedy
from tests.analysis.diagnosis_rig import busy, evidence, falling, steps, track

GIB = 2**30


def kinds(events: list[dict[str, Any]] | None = None, series: dict[str, Any] | None = None, **given: Any) -> list[str]:
    """Return the kinds of what is found."""
    found = findings(evidence(steps(), events=events or [], series={"loss": falling(), **(series or {})}, **given))
    return [one.kind for one in found if one.severity != "info"]


@pytest.mark.parametrize(
    ("state", "events", "expected"),
    [
        ("finished", [], []),
        ("running", [], []),
        ("preempted", [], []),
        ("failed", [{"kind": "exception", "error": "ValueError: no", "rank": 0}], ["crash"]),
        ("killed", [], ["crash"]),
        ("oom-killed", [], ["oom"]),
        ("failed", [{"kind": "out_of_memory", "wanted_bytes": GIB, "place": "train.py:3", "rank": 1}], ["oom"]),
        ("failed", [{"kind": "worker_died", "workers": [{"worker": 0, "exit_code": -9}], "rank": 0}], ["dead_worker"]),
    ],
)
def test_how_a_run_ended_is_the_verdict(state: str, events: list[dict[str, Any]], expected: list[str]) -> None:
    """What caused the end is told instead of the crash that follows from it."""
    assert kinds([{"time": 1.7e9, **one} for one in events], state=state) == expected


def test_a_cause_that_names_memory_is_out_of_memory() -> None:
    """An error of the allocator in the exception alone is enough."""
    assert kinds(state="failed", cause="RuntimeError: CUDA out of memory") == ["oom"]


def test_an_exit_code_of_one_rank_is_no_traceback() -> None:
    """What to do about a rank that set its own exit code does not send anyone to a traceback that does not exist."""
    ends = [
        EndedRank(0, "a", "failed", "Connection closed by peer", 9.1),
        EndedRank(1, "a", "failed", "exit code 3", 9.0),
    ]
    found, *_ = findings(evidence(steps(), state="failed", first_error=first_error(ErrorEvidence(ends=ends))))
    assert (found.rank, found.remedy) == (1, remedy("crash", "exit"))
    assert found.text.endswith("; 1 other rank ended after it)")


def test_no_rank_is_blamed_if_all_only_lost_another() -> None:
    """If every error is a consequence, the finding says that instead of naming the last one to report."""
    text = "RuntimeError: Connection closed by peer"
    ends = [EndedRank(rank, "a", "failed", text, 9.0) for rank in range(2)]
    found, *_ = findings(
        evidence(steps(), state="failed", cause=text, first_error=first_error(ErrorEvidence(ends=ends)))
    )
    assert found.rank is None
    assert found.text.startswith("no rank is known as the cause")


def test_a_run_that_a_person_stopped_has_not_crashed() -> None:
    """Ctrl-C is no fault."""
    assert kinds(state="failed", cause="KeyboardInterrupt: ") == kinds(state="killed", cause="killed by SIGINT") == []


def test_a_stall_that_goes_on_is_critical_and_one_that_ended_is_not() -> None:
    """The seconds are those from the last step before it."""
    stalled = {"kind": "stalled", "time": 1.7e9 + 20, "rank": 1, "seconds": 15.0, "step": 40}
    over = {"kind": "recovered", "time": 1.7e9 + 30, "rank": 1}
    hung = {**stalled, "kind": "hung", "time": 1.7e9 + 26, "seconds": 21.0}
    cases = ([stalled], "critical", 15.0), ([stalled, over], "info", 25.0), ([stalled, hung, over], "warning", 25.0)
    for events, severity, lasted in cases:
        (found,) = (one for one in findings(evidence(steps(), events=events, state="running")) if one.kind == "hang")
        assert (found.severity, found.rank) == (severity, 1)
        assert found.cost_seconds == pytest.approx(lasted)


def test_a_training_that_stood_still_and_then_finished_did_not_hang() -> None:
    """After its last step a program saves or evaluates; only if nothing at all moved, that is worth a warning."""
    stalled = {"kind": "stalled", "time": 1.7e9 + 20, "rank": 1, "seconds": 15.0, "step": 40}
    verdict = {"kind": "hang_verdict", "time": 1.7e9 + 21, "rank": -1, "verdict": "never_arrived", "ranks": [1]}
    ended = {"kind": "ended", "time": 1.7e9 + 300, "rank": 1, "state": "finished"}
    for events, severity in (([stalled, verdict, ended], "info"), ([stalled, {**stalled, "kind": "hung"}], "warning")):
        (found,) = (one for one in findings(evidence(steps(), events=events, state="finished")) if one.kind == "hang")
        assert found.severity == severity
        assert found.text.startswith("the training stood still for")
        assert found.text.endswith("after step 40, then finished")
        assert found.remedy == remedy("hang", "finished")


def test_a_hang_of_many_ranks_is_one_finding_with_the_verdict_of_the_watchers() -> None:
    """It names the rank that is the cause, and what each source shows; once the ranks move again it is gone."""
    still = [{"kind": "hung", "time": 1.7e9 + 20, "rank": rank, "seconds": 15.0, "step": 40} for rank in range(4)]
    said = {
        "verdict": "outside_torch",
        "ranks": [2],
        "waiting": [0, 1, 3],
        "remedy": "free the lock",
        "confidence": 0.9,
    }
    said |= {"text": "Rank 2 waits for a lock.", "evidence": {"stacks": ["rank 2 waits for a lock at train.py:9"]}}
    verdict = {"kind": "hang_verdict", "time": 1.7e9 + 21, "rank": -1, **said}
    told = findings(evidence(steps(), events=[*still, verdict], state="running"))
    (found,) = (one for one in told if one.kind == "hang")
    assert (found.text, found.rank, found.remedy) == ("rank 2 waits for a lock", 2, "free the lock")
    assert found.evidence["sources"] == said["evidence"]
    assert found.cost_seconds == pytest.approx(16.0)
    over = {"kind": "hang_verdict", "time": 1.7e9 + 30, "rank": -1, "verdict": "none", "text": "They move."}
    gone = [{"kind": "recovered", "time": 1.7e9 + 30, "rank": rank} for rank in range(4)]
    told = findings(evidence(steps(), events=[*still, verdict, *gone, over], state="running"))
    assert "critical" not in [one.severity for one in told]


def test_a_followed_run_that_writes_nothing_is_not_said_to_hang() -> None:
    """Its files do not show why; when it has ended, or goes on, there is nothing to say."""
    stalled = {"kind": "stalled", "time": 1.7e9 + 20, "rank": 0, "seconds": 15.0, "step": 40}
    over = {"kind": "recovered", "time": 1.7e9 + 30, "rank": 0}

    def hangs(events, state):
        told = findings(evidence(steps(), events=events, state=state, foreign="tfevents"))
        return [one for one in told if one.kind == "hang"]

    (found,) = hangs([stalled], "running")
    assert found.text.startswith("nothing new came for 15 s after step 40: the training has ended, stands still")
    assert (found.severity, found.remedy) == ("warning", remedy("hang", "silent"))
    assert hangs([stalled, over], "running") == hangs([stalled], "interrupted") == []


def test_memory_that_grows_all_the_time_is_a_leak_and_what_is_loaded_at_the_start_is_not() -> None:
    """Readings from before the steps, and while a model is compiled, do not count."""
    late = 200 + np.arange(60.0)
    leak = GIB + late * 8 * 2**20
    assert kinds(series={"memory/resident_bytes": track(leak, every=3, apart=0.5)}) == ["memory_leak"]
    flat = np.full(60, 1.0 * GIB) + np.random.default_rng(0).normal(0, 2**20, 60)
    assert kinds(series={"memory/resident_bytes": track(flat, every=3)}) == []
    compiled = [{"kind": "compile", "time": 1.7e9 + 29, "recompiled": False, "seconds": 1.0, "rank": 0}]
    assert kinds(compiled, {"memory/resident_bytes": track(leak, every=3, apart=0.5)}) == []


def test_a_quota_swap_heat_and_fragments_are_told() -> None:
    """Each from its own samples."""
    assert kinds(series={"cgroup/throttled_ratio": [0.6] * 20, "cgroup/cpu_limit": [0.5] * 20}) == ["cpu_throttled"]
    swap = {"swap/used_bytes": np.linspace(0, GIB, 20), "pressure/memory_some_stalled_ratio": [0.3] * 20}
    assert kinds(series=swap) == ["swapping"]
    assert kinds(series=swap | {"pressure/memory_some_stalled_ratio": [0.0] * 20}) == []
    card = {"gpu/0/utilization_ratio": [0.95] * 20}
    assert kinds(series=card | {"gpu/0/throttle_hw_thermal": [1.0] * 20}) == ["gpu_throttled"]
    assert kinds(series=card | {"gpu/0/throttle_power_cap": [1.0] * 10 + [0.0] * 10}) == []
    full = {
        "memory_fragmentation_ratio": [0.4] * 20,
        "memory_reserved_bytes": [72e9] * 20,
        "memory_total_bytes": [80e9] * 20,
    }
    assert kinds(series=card | {f"gpu/0/{name}": value for name, value in full.items()}) == ["fragmentation"]


def test_a_gpu_that_waits_is_told_last_and_for_information() -> None:
    """It follows from something else."""
    found = findings(evidence(steps(), series={"gpu/0/utilization_ratio": [0.2] * 20}))
    assert [(one.kind, one.severity) for one in found] == [("gpu_idle", "info")]


def test_a_disk_that_others_fill_is_not_the_runs_fault() -> None:
    """Only what the run writes itself counts."""
    free = track(np.linspace(20 * GIB, 10 * GIB, 60))
    own = {"process/0/write_bytes_per_second": [GIB / 6] * 60}
    assert kinds(series={"disk/free_bytes": free}) == []
    assert kinds(series={"disk/free_bytes": free, **own}) == ["disk_full"]


def test_a_neighbour_is_a_note_and_no_finding() -> None:
    """The same run gives the same verdict on a busy machine."""
    assert "other programs used 1.0 of 2 CPUs" in busy_note(evidence(steps(), series=busy()))
    assert busy_note(evidence(steps())) == ""
    assert primary(findings(evidence(steps(), series=busy()))) == primary(findings(evidence(steps())))


def test_a_pause_that_an_error_ended_is_no_hang() -> None:
    """A step took long, and then memory ran out; after a real hang an error is how it ends."""
    paused = {"kind": "stalled", "time": 1.7e9 + 20, "seconds": 11.0, "rank": 0, "step": 399}
    error = {"kind": "exception", "time": 1.7e9 + 24, "error": "RuntimeError", "rank": 0, "step": 399}
    given = {"state": "failed", "cause": "RuntimeError: can't allocate memory"}
    told = findings(evidence(steps(), events=[paused, error], **given))
    assert [one.kind for one in told if one.severity != "info"] == ["oom"]
    hung = {**paused, "kind": "hung"}
    told = findings(evidence(steps(), events=[paused, hung, error], state="failed", cause="RuntimeError: timeout"))
    assert [one.kind for one in told if one.severity != "info"] == ["hang", "crash"]


def test_ranks_of_one_machine_fill_its_memory_together() -> None:
    """Two equal leaks are full in half the time, and what the other ranks hold is not free; two machines are two."""
    count, gib = 200, 2.0**30
    grows = 4 * gib + np.arange(count) * 0.01 * gib
    left = {}
    for nodes, second in ((1, grows), (1, np.full(count, 4 * gib)), (2, grows)):
        series = {
            "process/0/tree_memory_bytes": {-1: track(grows)},
            "process/1/tree_memory_bytes": {-nodes: track(second)},
            "memory/total_bytes": {-1: track(np.full(count, 32 * gib))},
        }
        found = [one for one in findings(evidence(steps(), steps(rank=1), series=series)) if one.kind == "memory_leak"]
        left[nodes, len(found)] = found[0].evidence["left"]
        assert ("with the other growing ranks" in found[0].text) is ((nodes, len(found)) == (1, 2))
    alone = (32 - 6) / 0.01
    assert left[2, 2] == pytest.approx(alone, rel=0.05)
    assert left[1, 1] == pytest.approx(alone - 400, rel=0.05)
    assert left[1, 2] == pytest.approx((32 - 12) / 0.02, rel=0.05)


def test_memory_that_is_full_in_years_is_not_forecast() -> None:
    """The run will be over, or another."""
    count, gib = 200, 2.0**30
    series = {
        "process/0/tree_memory_bytes": {-1: track(4 * gib + np.arange(count) * 2e-3 * gib)},
        "memory/total_bytes": {-1: track(np.full(count, 4e4 * gib))},
    }
    (found,) = [one for one in findings(evidence(steps(), series=series)) if one.kind == "memory_leak"]
    assert found.text.endswith("per step")


def test_ranks_that_were_taken_away_are_no_crash() -> None:
    """A job whose ranks failed because a scheduler took some of them away did not crash: that is what is said."""
    taken = EndedRank(0, "a", "preempted", "SIGTERM in a SLURM job", 5.0)
    lost = EndedRank(1, "b", "failed", "exit code 1", 8.0)
    first = first_error(ErrorEvidence({}, [taken, lost]))
    assert kinds(state="failed", first_error=first) == ["node_gone"]
    assert remedy("node_gone").startswith("the scheduler took these ranks away")
