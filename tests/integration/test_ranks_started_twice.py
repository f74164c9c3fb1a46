"""Two processes that claim the same rank of the same job: a sentence each, and nothing lost."""

from __future__ import annotations

import stepscope
from stepscope.views.ranks import ranks_view
from tests.integration.processes import until

RANK = """
    import sys
    import stepscope
    run = stepscope.init(project="twice", run_id="job")
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(50):
        run.log({"value": float(sys.argv[1])}, step=step)
    run.finish()
    print(run.path)
"""


def test_two_processes_with_one_rank_are_told_and_nothing_is_lost(bench, monkeypatch):
    """The second says at once that the rank is taken; readers have the rows of both and keep the job whole."""
    monkeypatch.setattr("stepscope.store.states.OVERLAP", 0.0)
    trainers = []
    for number, rank in enumerate((0, 1, 1)):
        place = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
        trainers.append(bench.start(RANK, number, stdin=-1, environ=place))
        assert trainers[-1].line() == "ready"
    for trainer in trainers:
        trainer.process.stdin.write("go\n")
        trainer.process.stdin.flush()
    assert [trainer.wait() for trainer in trainers] == [0, 0, 0]
    (complaint,) = trainers[2].complaints()
    assert "another process on this machine is rank 1 of run job: this one is recorded as attempt 1" in complaint
    assert trainers[0].complaints() == trainers[1].complaints() == []
    past = stepscope.open(trainers[0].out.strip())
    until(lambda: past.state == "finished" and past.attempts == [0, 1], "the end")
    assert past.series("value", attempt=1).value.tolist() == [2.0] * 50
    series = past.series("value", attempt=0)
    assert [series.value[series.rank == rank].tolist() for rank in (0, 1)] == [[0.0] * 50, [1.0] * 50]
    view = ranks_view(past)
    assert (view["attempt"], [row["rank"] for row in view["rows"]]) == (0, [0, 1])
    (problem,) = [one for one in past.problems() if "two processes" in one]
    assert problem.startswith("rank 1 was recorded by two processes at once")
