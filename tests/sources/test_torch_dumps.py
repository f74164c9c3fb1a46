"""Dumps that torch wrote into a run explain its hang, where a rank could not answer the watcher."""

from __future__ import annotations

import os
import pickle

from stepscope.analysis.hang.verdict import judge
from stepscope.sources.hang import hang_evidence
from stepscope.store.layout import FORMAT_VERSION, RunFolder
from stepscope.store.reader import Past
from stepscope.store.states import NodeState, RankState
from tests.exporters.recorded import CREATED
from tests.importers.test_flight_recorder import dump

STARTED = CREATED / 1e6
STOOD = STARTED + 600.0


def timed_out(root, late=1, ranks=4, ended=STOOD + 1, state="killed"):
    """Make a run that torch's watchdog ended after it had dumped: rank `late` entered one collective less."""
    folder = RunFolder(root / "demo" / "run-1")
    folder.make()
    folder.describe({"format": FORMAT_VERSION, "id": "run-1", "created": CREATED, "world_size": ranks})
    states = {
        rank: RankState(state, "killed by SIGABRT", step=9, started=CREATED, ended=int(ended * 1e6))
        for rank in range(ranks)
    }
    NodeState("node-0.00000000", 0, time=CREATED, ended=True, ranks=states).save(folder)
    folder.torch_dump(0).parent.mkdir()
    for rank in range(ranks):
        facts = dump(rank, ranks)
        facts["entries"][0] |= {"collective_seq_id": 5 if rank == late else 6, "record_id": 1}
        facts["entries"][0]["state"] = "completed" if rank == late else "scheduled"
        write(folder, rank, pickle.dumps(facts))
    return folder


def write(folder, rank, data, at=STOOD):
    """Write a dump as torch does, at a moment."""
    path = folder.torch_dump(0, rank)
    path.write_bytes(data)
    os.utime(path, (at, at))


def test_dumps_of_torch_name_the_rank_that_never_arrived(tmp_path):
    """No watcher had seen the ranks stand still; they ended by torch's watchdog after the dump."""
    found = judge(hang_evidence(Past(timed_out(tmp_path))))
    assert (found.kind, found.ranks, found.waiting) == ("never_arrived", (1,), (0, 2, 3))


def test_a_rank_that_died_before_the_dumps_is_the_cause(tmp_path):
    """The others timed out because of it: a dump is written minutes later."""
    folder = timed_out(tmp_path)
    node = NodeState.load(next((folder.path / "nodes").glob("*.json")))
    node.ranks[1].ended = int((STARTED + 5) * 1e6)
    node.save(folder)
    folder.torch_dump(0, 1).unlink()
    found = judge(hang_evidence(Past(folder)))
    assert (found.kind, found.ranks) == ("dead_rank", (1,))


def test_dumps_of_a_run_that_ended_well_are_no_hang(tmp_path):
    """A program may ask torch for dumps whenever it likes."""
    found = judge(hang_evidence(Past(timed_out(tmp_path, state="finished"))))
    assert found.kind == "none"


def test_a_damaged_dump_is_reported_and_the_others_are_used(tmp_path):
    """Torch may have been killed while it wrote."""
    folder = timed_out(tmp_path)
    write(folder, 3, folder.torch_dump(0, 3).read_bytes()[:40])
    evidence = hang_evidence(Past(folder))
    assert judge(evidence).ranks == (1,)
    [problem] = evidence.problems
    assert "0-comm_lib_trace_rank_3: not used" in problem
