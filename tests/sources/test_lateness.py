"""Who is late right now, by the files of the nodes."""

from __future__ import annotations

from stepscope.analysis.stragglers.pace import StepTiming
from stepscope.sources.lateness import lateness_now
from stepscope.store.states import NodeState, RankState


def node(name, attempt=0, late=None, ranks=range(4)):
    """Return the state of a node whose ranks compute 50 ms of 100, the late one 90."""
    state = NodeState(name, attempt)
    for rank in ranks:
        own = 0.09 if rank == late else 0.05
        timing = StepTiming(rank, 0.1, own, None, {"forward": own, "backward": 0.1 - own}, node=name)
        state.ranks[rank] = RankState(pace=timing.as_dict())
    return state


def test_the_late_rank_of_the_last_attempt_is_named() -> None:
    """Not one of an earlier attempt, of a node that has ended, or of a rank that has."""
    found = lateness_now([node("a.0123abcd"), node("b.0123abce", late=6, ranks=range(4, 8))])
    assert found is not None
    text = "the other 7 ranks wait 40 ms in a step of 100 ms for rank 6 on b: forward takes it 90 ms, the others 50 ms"
    assert found.text() == text
    assert lateness_now([node("a", late=1), node("a", attempt=1)]) is None
    over = node("a", late=1)
    over.ended = True
    assert lateness_now([over]) is None
    assert lateness_now([]) is None
    gone = node("a", late=1)
    gone.ranks[1].state = "killed"
    assert lateness_now([gone]) is None


def test_nodes_with_equal_names_keep_their_marks() -> None:
    """Containers of one host have its name."""
    found = lateness_now([node("vm.0123abcd"), node("vm.0123abce", late=6, ranks=range(4, 8))])
    assert found is not None
    assert found.who == "rank 6 on vm.0123abce"
