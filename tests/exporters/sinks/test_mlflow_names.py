from __future__ import annotations

import json
import math
import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.sinks.mlflow.names import CUT, NAME_LIMIT, PARAM_LIMIT, cut, params_of, valid_name
from stepscope.exporters.sinks.mlflow.points import MOST_BYTES, log_batches, metric_texts, newest, stored_points
from stepscope.exporters.sinks.mlflow.run_facts import RunView, changes, first_tags, run_mark
from stepscope.exporters.sinks.mlflow.schema import artifact_root, below
from stepscope.exporters.sinks.sink import AlertChange, RunFacts, RunNews, SentRow, SinkRefusesError
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.mlflow_cases import LARGEST, ROWS, SAME, expected

PARTS = st.sampled_from(
    ["a", "b", "/", ".", "..", "?", "%", "é", "_", "-", ":", " ", "\n", "\0", "\ud800", "0123456789"]
)
NAMES = st.lists(PARTS, max_size=12).map("".join) | st.text(max_size=300)


def takes(name):
    """MLflow's own rule, of mlflow/utils/validation.py."""
    norm = posixpath.normpath(name)
    is_path = norm == name and norm != "." and not norm.startswith(("..", "/"))
    return bool(re.match(r"^[/\w.\- :]*$", name)) and is_path and len(name) <= NAME_LIMIT


@given(NAMES)
def test_every_name_becomes_valid(name):
    """Whatever a metric is called, MLflow takes its name."""
    assert takes(valid_name(name))


@given(st.lists(NAMES, unique=True, max_size=30))
def test_no_two_names_become_one(names):
    """Different names stay different, also if one is what another would become."""
    given_names = {*names, *map(valid_name, names)}
    assert len(set(map(valid_name, given_names))) == len(given_names)


@pytest.mark.parametrize("name", ["loss", "train/loss", "a b", "läuft", "gpu.0/mem-used_mb", "a:b", ".hidden", "a/..b"])
def test_a_name_that_mlflow_takes_stays(name):
    """A name is changed only where it must be."""
    assert valid_name(name) == name


def test_long_texts_are_cut_with_a_mark():
    """A value that is too long says that it was cut."""
    params = params_of({"a": {"b": "x" * 9000}, "c": None, "d": True, "e": 3e-4, "f": [1, "é"], "g": {}, "h": ""})
    assert len(params["a.b"]) == PARAM_LIMIT
    assert params.pop("a.b").endswith(CUT)
    assert params == {"c": "None", "d": "True", "e": "0.0003", "f": '[1, "é"]', "g": "{}", "h": ""}


@given(st.text(max_size=50))
def test_a_text_can_always_be_encoded(text):
    """No text of a run makes a request that cannot be sent."""
    cut(text, 20).encode()
    assert "\0" not in cut(text, 20)


def test_points_are_those_that_mlflow_stores():
    """Names, milliseconds, steps and values are those that MLflow's client would read."""
    rows, merged = stored_points(batch_of(ROWS), "")
    shown = sorted((key, time, step, repr(math.nan if nan else value)) for key, time, step, value, nan in rows)
    assert (shown, merged) == (expected(ROWS), 0)


def test_same_points_of_a_millisecond_are_counted():
    """Points that MLflow cannot tell from another are sent once, and counted."""
    rows, merged = stored_points(batch_of(SAME), "p/")
    assert [(row[0], row[3]) for row in rows] == [("p/same", 1.5), ("p/same", 2.5)]
    assert merged == 2


def test_zero_and_minus_zero_are_one():
    """SQL has one zero, as the count of merged points has."""
    same = [SentRow(0, 0, n, 1, 1000.0, {"a": value}) for n, value in enumerate((0.0, -0.0, math.nan))]
    rows, merged = stored_points(batch_of(same), "")
    assert (len(rows), merged) == (2, 1)


def test_a_time_before_1970_is_refused():
    """MLflow would refuse the whole request: the row is set aside instead."""
    with pytest.raises(SinkRefusesError, match="1970"):
        stored_points(batch_of([SentRow(0, 0, 0, 1, -5.0, {"a": 1.0})]), "")


def test_the_newest_point_has_the_greatest_step():
    """The last value of a metric is that of its greatest step, then time, then value."""
    rows = [("a", 9, 1, 5.0, False), ("a", 1, 2, 1.0, False), ("a", 2, 2, 0.0, True), ("b", 1, 1, 1.0, False)]
    assert newest(rows) == {"a": rows[2], "b": rows[3]}


def test_requests_keep_to_mlflows_limits():
    """No request has more than 1000 metrics or 1 MB, none is lost, and all are JSON."""
    rows = [("\N{GRINNING FACE}" * 240, n, n, LARGEST if n % 2 else 0.1, n % 3 == 0) for n in range(2500)]
    requests = list(log_batches("r", "metrics", metric_texts(rows), 1000))
    assert [row for _, held in requests for row in held] == rows
    assert all(len(body) <= MOST_BYTES + 5000 < 1_000_000 and len(held) <= 1000 for body, held in requests)
    first = json.loads(requests[0][0])["metrics"][:2]
    assert [metric["value"] for metric in first] == ["NaN", "Infinity"]


def test_tags_of_a_new_run_say_where_it_comes_from():
    """A run has its notes, a link back, and the tags of people."""
    tags = first_tags(RUN)
    assert tags["mlflow.note.content"] == f"the first\n\n[Open in Stepscope]({RUN.page})"
    assert tags["stepscope.run"] == RUN.identity
    assert (tags["stepscope.tag.gpu"], tags["stepscope.group"], tags["stepscope.host"]) == ("true", "seeds", "node7")
    assert tags["mlflow.source.git.commit"] == RUN.commit


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_mark_of_a_run_can_be_quoted(project, other):
    """The mark by which a run is found has no quote, and differs between runs."""
    marks = [run_mark(RunFacts("i", name, "", 1.0, "")) for name in (project, other)]
    assert not set("".join(marks)) & set("'\"`\\%")
    assert (marks[0] == marks[1]) == (project.encode("utf-8", "replace") == other.encode("utf-8", "replace"))


def test_news_change_only_what_differs():
    """Saying the same news again changes nothing; a changed setting goes to a tag, since a parameter cannot change."""
    alerts = [
        AlertChange("1", "loss-spike", "warning", state, "loss 9", 1000.0 + n)
        for n, state in enumerate(("firing", "resolved"))
    ]
    news = RunNews("oom-killed", "no memory", 2000.0009, "it grew", alerts, {"lr": 2, "b": 1}, ("x",))
    view = RunView({"lr": "1"}, {"stepscope.tag.old": "true", "mine": "1"}, "RUNNING")
    change = changes(view, news)
    assert change.params == {"b": "1"}
    assert change.tags == {
        "stepscope.state": "oom-killed",
        "stepscope.cause": "no memory",
        "stepscope.verdict": "it grew",
        "stepscope.alert.loss-spike": "resolved 1970-01-01T00:16:41Z (warning): loss 9",
        "stepscope.config.lr": "2",
        "stepscope.tag.x": "true",
    }
    assert change.gone == ["stepscope.tag.old"]
    assert (change.status, change.end_time, change.is_other) == ("KILLED", 2_000_000, True)
    after = RunView(view.params | change.params, {"mine": "1"} | change.tags, "KILLED", 2_000_000)
    assert changes(after, news)[:3] == ({}, {}, [])
    assert not changes(after, news).is_other


def test_a_setting_that_changes_back_is_shown():
    """The tag of a changed setting has the value of now, also if that is the first one again."""
    view = RunView({"lr": "1"}, {"stepscope.config.lr": "2"}, "RUNNING")
    assert changes(view, RunNews(config={"lr": 1})).tags["stepscope.config.lr"] == "1"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("running", "RUNNING"),
        ("finished", "FINISHED"),
        ("failed", "FAILED"),
        ("lost", "KILLED"),
        ("preempted", "KILLED"),
    ],
)
def test_states_have_a_status(state, status):
    """Each of our states is one of MLflow's five."""
    assert changes(RunView(), RunNews(state)).status == status


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("mlflow-artifacts:/1", "mlflow-artifacts:/1/r/artifacts"),
        ("/srv/mlruns/1", "/srv/mlruns/1/r/artifacts"),
        ("s3://bucket/base/1?region=x", "s3://bucket/base/1/r/artifacts?region=x"),
        ("file:///srv/1", "file:///srv/1/r/artifacts"),
    ],
)
def test_artifacts_are_where_mlflow_has_them(location, place):
    """The place of a run's artifacts is below that of its experiment, as MLflow writes it."""
    assert below(location, "r", "artifacts") == place


def test_a_new_experiment_has_its_artifacts_beside_the_others(tmp_path):
    """The root of artifacts is that of the experiments in the database; of an empty one, `mlruns` beside it."""
    assert artifact_root({0: "mlflow-artifacts:/0", 4: "/elsewhere"}, tmp_path / "a.db") == "mlflow-artifacts:"
    assert below(artifact_root({0: "mlflow-artifacts:/0"}, tmp_path / "a.db"), "2") == "mlflow-artifacts:/2"
    assert artifact_root({}, tmp_path / "a.db") == f"{tmp_path}/mlruns"
