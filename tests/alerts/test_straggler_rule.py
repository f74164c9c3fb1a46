"""The straggler alert: within a minute, once for the job, whichever node the late rank is on."""

from __future__ import annotations

import numpy as np

from stepscope.alerts.evaluation.job_facts import JobFacts
from tests.alerts.rows import records, states
from tests.alerts.test_builtin_rules import fired, rig_of


def ranks_of(rig, own, first=0, count=400, noise=0.0, ranks=range(4), job=None):
    """Log steps of 0.1 s of some ranks, evaluated every two seconds; `own` returns the forward seconds of a rank."""
    random = np.random.default_rng(first)
    told = []
    rig.engine.job = job
    for start in range(first, first + count, 20):
        for rank in ranks:
            rows = []
            for at in range(start, start + 20):
                forward = own(rank) * float(random.normal(1, noise))
                row = {"step_seconds": 0.1, "phase/forward": forward, "phase/backward": 0.1 - forward}
                rows.append((at, at * 0.1, row))
            rig.engine.rows(rank, *records(rows))
        told += rig.engine.evaluate(round((start + 20) * 1e8))
    return told


def test_straggler():
    """The rank that the others wait for is named within a minute, and the alert resolves once it keeps up."""
    rig = rig_of("straggler")
    assert ranks_of(rig, lambda _: 0.05, count=600) == []
    told = ranks_of(rig, lambda rank: 0.08 if rank == 2 else 0.05, first=600, count=600)
    assert states(told) == [("straggler", "firing")]
    assert told[0].time - 60 < 60
    assert told[0].evidence["rank"] == 2
    assert told[0].text.startswith(
        "the other 3 ranks wait 30 ms in a step of 100 ms for rank 2: forward takes it 80 ms"
    )
    assert "nvidia-smi -q -d PERFORMANCE,CLOCK" in told[0].remedy
    over = ranks_of(rig, lambda _: 0.05, first=1200, count=600)
    assert states(over) == [("straggler", "resolved")]


def test_even_ranks_have_no_straggler():
    """Ranks that are alike are left alone."""
    assert ranks_of(rig_of("straggler"), lambda _: 0.05, count=1200, noise=0.1) == []


def elsewhere(late=None):
    """Return the timings of four ranks of another node, of which one may be late by 40 ms."""
    rig, job = rig_of("straggler"), JobFacts("b")
    ranks_of(rig, lambda rank: 0.09 if rank == late else 0.05, count=60, ranks=range(4, 8), job=job)
    assert len(job.own) == 4
    return job.own


def test_the_watcher_of_the_late_rank_raises_the_alert_for_all_nodes():
    """The other watchers know it too, and are silent."""
    mine = JobFacts("a", elsewhere=elsewhere())
    told = ranks_of(rig_of("straggler"), lambda rank: 0.09 if rank == 1 else 0.05, job=mine)
    assert fired(told) == ["straggler"]
    assert "the other 7 ranks wait 40 ms in a step of 100 ms for rank 1 on a" in told[0].text
    theirs = JobFacts("a", elsewhere=elsewhere(late=5))
    assert ranks_of(rig_of("straggler"), lambda _: 0.05, job=theirs) == []


def test_one_rank_per_node_is_compared_with_the_other_nodes():
    """A node with a single rank has nobody else to compare with."""
    mine = JobFacts("a", {0: {"run_wait_ratio": 0.5}}, elsewhere())
    told = ranks_of(rig_of("straggler"), lambda _: 0.09, ranks=[0], job=mine)
    assert fired(told) == ["straggler"]
    assert "other programs use its CPUs" in told[0].text
    assert "stop it or move it" in told[0].remedy
