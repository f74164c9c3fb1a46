"""What a sink is reported about a run."""

from __future__ import annotations

from stepscope.exporters.sinks.news import NewsDesk
from stepscope.store.drain import Drain, OwnRows
from stepscope.store.layout import RunFolder
from stepscope.store.states import NodeState, RankState
from tests.exporters.recorded import CREATED, PAIR, WRITER, make_run

NOW = CREATED / 1e6 + 100


def alert(folder, state, at=1_000_000, **facts):
    event = {"kind": "alert", "alert": "a-1", "rule": "loss_nan", "state": state, "severity": "critical", **facts}
    Drain(folder, WRITER, OwnRows(-1, 0)).write_events([{**event, "text": "loss is NaN", "monotonic_ns": at}], 0, PAIR)


def desk_of(folder, now=NOW, **options):
    return NewsDesk(folder, WRITER.node, clock=lambda: now, **options)


def test_the_facts_of_a_run_come_from_its_folder(tmp_path):
    """Identity, configuration and the link back are those of the run."""
    folder = make_run(tmp_path, config={"lr": 0.1})
    facts = desk_of(folder, page="http://host:8080/").facts()
    assert (facts.id, facts.project, facts.config, facts.created) == ("run-1", "mnist", {"lr": 0.1}, CREATED / 1e6)
    assert facts.page == "http://host:8080/#/run/mnist%2Frun-1"  # the id that the page knows
    assert facts.is_first
    assert desk_of(folder).facts().page == ""


def test_the_end_is_told_with_its_verdict_which_is_made_once(tmp_path):
    """A run that has ended has a state, a time and a diagnosis; a running one is not diagnosed."""
    folder = make_run(tmp_path, state="failed")
    made = []
    desk = desk_of(folder, verdict=lambda: made.append(1) or "the loss diverged")
    for _ in range(2):
        news, _ = desk.news({}, {})
    assert (news.state, news.verdict, news.ended) == ("failed", "the loss diverged", CREATED / 1e6 + 2.5)
    assert len(made) == 1
    running = RunFolder(make_run(tmp_path, run="run-2", state="running").path)
    assert desk_of(running, verdict=lambda: made.append(1) or "x").news({}, {})[0].verdict == ""
    assert len(made) == 1


def test_a_change_of_an_alert_is_told_once(tmp_path):
    """A sink that was reported about an alert hears only what came after it."""
    folder = make_run(tmp_path)
    desk = desk_of(folder)
    alert(folder, "firing")
    news, reported = desk.news({}, {})
    assert [(one.rule, one.state, one.text) for one in news.alerts] == [("loss_nan", "firing", "loss is NaN")]
    assert desk.news(reported, {})[0].alerts == []
    alert(folder, "resolved", at=2_000_000)
    news, after = desk.news(reported, {})
    assert [one.state for one in news.alerts] == ["resolved"]
    assert after != reported


def test_the_same_news_have_the_same_digest(tmp_path):
    """What a sink knows changes only when the news do."""
    folder = make_run(tmp_path)
    desk = desk_of(folder)
    assert desk.news({}, {})[1] == desk.news({}, {})[1]
    assert desk.news({}, {"loss": 1.0})[1] != desk.news({}, {"loss": 2.0})[1]


def test_progress_comes_from_the_planned_steps_and_the_pace(tmp_path):
    """Without a plan there is neither progress nor time left."""
    folder = make_run(tmp_path, config={"max_steps": 10}, state="running")
    ranks = {0: RankState(step=3, steps=4, step_seconds=8.0, started=CREATED)}
    NodeState(WRITER.node, 0, time=CREATED, ended=True, ranks=ranks).save(folder)  # ended: it is not looked for
    news, _ = desk_of(folder).news({}, {})
    assert (news.state, news.progress, news.remaining) == ("running", 0.4, 12.0)
    plain = make_run(tmp_path, run="run-2", state="running")
    assert desk_of(plain).news({}, {})[0].progress is None


def test_a_node_is_over_when_its_last_events_are_written(tmp_path):
    """Shortly after the end more events may come; a running node is not over."""
    folder = make_run(tmp_path)
    assert not desk_of(folder, now=CREATED / 1e6 + 1).is_over()
    assert desk_of(folder, now=CREATED / 1e6 + 4).is_over()
    other = NewsDesk(folder, "another.node", clock=lambda: NOW)
    assert not other.is_over()


def test_the_first_node_has_rank_zero(tmp_path):
    """Of several nodes one tells the sink about the run."""
    folder = make_run(tmp_path)
    NodeState("node.def", 0, time=CREATED, ended=True, ranks={1: RankState("finished")}).save(folder)
    assert desk_of(folder).is_first()
    assert not NewsDesk(folder, "node.def", clock=lambda: NOW).is_first()
