from __future__ import annotations

import numpy as np
import pytest

from stepscope.exporters.prometheus.board import Board
from stepscope.exporters.sinks.series.labelled import SeriesTable, run_labels
from stepscope.exporters.sinks.series.news_series import MOST_SETTINGS, NewsBoard
from stepscope.exporters.sinks.sink import AlertChange, RunFacts, RunNews, SentRow
from tests.exporters.sinks.batches import RUN, batch_of


def written(rows, prefix="", common=None):
    """Return the values of rows by name and labels."""
    table = SeriesTable(prefix, common or {})
    points = batch_of(rows).points
    numbers = table.numbers(points)
    values = table.values(numbers, points)
    return {
        (table.all[number].name, tuple(pair for pair in table.all[number].labels if pair[0] != "__name__")): value
        for number, value in zip(numbers.tolist(), values.tolist(), strict=True)
    }


NAMES = [
    "loss",
    "gpu/0/memory_allocated_bytes",
    "gpu/1/utilization_ratio",
    "my/own",
    "phase/forward",
    "cpu/usage_ratio",
]


@pytest.mark.parametrize("rank", [0, 3, -1, -2])
def test_names_and_labels_are_those_of_a_scrape(rank):
    """A recorded value has the name, labels and unit here that it has on the page that Prometheus scrapes."""
    board = Board()
    board.update(RUN.id, rank, RUN.project, dict.fromkeys(NAMES, 0.5))
    page = board.page()[1].decode()
    found = written([SentRow(rank, 0, 1, 5, 1.0, dict.fromkeys(NAMES, 0.5))], common=run_labels(RUN))
    assert len(found) == len(NAMES)
    for (name, labels), value in found.items():
        [line] = [
            line
            for line in page.splitlines()
            if line.startswith(f"{name}{{") and all(f'{label}="{text}"' in line for label, text in labels)
        ]
        assert line.count('="') == len(labels)
        assert float(line.rpartition(" ")[2]) == pytest.approx(value)


def test_durations_of_steps_are_a_gauge():
    """The duration of a step, which a scrape shows as a histogram, is a value like any other."""
    assert written([SentRow(0, 0, 1, 5, 1.0, {"step_seconds": 0.25})]) == {
        ("stepscope_step_seconds", (("rank", "0"),)): 0.25
    }


def test_a_name_with_two_documented_names_is_sent_once():
    """Of several names that a scrape shows for a metric only the first is sent."""
    found = written([SentRow(-1, 0, 1, None, 1.0, {"gpu/0/memory_used_bytes": 2.0**21})])
    assert found == {("gpu_memory_used_mb", (("gpu_id", "0"), ("rank", "node0"))): 2.0}


def test_two_spellings_of_a_metric_are_two_series():
    """If a run records a metric under two names, the canonical one has the family, whatever the order."""
    for values in ({"lr": 1.0, "learning_rate": 2.0}, {"learning_rate": 2.0, "lr": 1.0}):
        found = written([SentRow(0, 0, 1, 5, 1.0, values)])
        assert found == {
            ("learning_rate", (("rank", "0"),)): 2.0,
            ("stepscope_lr", (("metric", "lr"), ("rank", "0"))): 1.0,
        }


def test_attempts_and_prefixes_are_in_the_series():
    """A later attempt has a label, the prefix stands before the name with what a name may hold."""
    found = written([SentRow(0, 2, 1, 5, 1.0, {"loss": 1.0})], prefix="9team/")
    assert found == {("_9team_training_loss", (("attempt", "2"), ("rank", "0"))): 1.0}


def test_far_apart_ranks_get_their_series():
    """Ranks and attempts far apart do not make two series one."""
    rows = [
        SentRow(rank, attempt, 1, 5, 1.0, {"loss": 1.0}) for rank in (-(2**30), 2**30) for attempt in (0, 2**31 - 1)
    ]
    assert len(written(rows)) == 4


def test_a_series_keeps_its_number():
    """Points of the same series in two batches have the same number, whatever else is in the batches."""
    table = SeriesTable("", {})
    first = table.numbers(batch_of([SentRow(0, 0, 1, 5, 1.0, {"a": 1.0, "b": 2.0})]).points)
    second = table.numbers(batch_of([SentRow(0, 0, 2, 6, 2.0, {"c": 1.0, "b": 2.0})]).points)
    assert second[1] == first[1]
    assert len(np.unique([*first, *second])) == 3


def values(board, **news):
    return {
        (one.target.family.removeprefix("stepscope_"), tuple(one.labels.values())): one.value
        for one in board.values(RunNews(**news))
    }


def test_the_state_is_one_of_all():
    """Of the states of a run exactly the present one has the value 1."""
    found = values(NewsBoard(RUN), state="failed")
    states = {labels[0]: value for (family, labels), value in found.items() if family == "run_state"}
    assert [state for state, value in states.items() if value] == ["failed"]
    assert len(states) == 8


def test_an_alert_goes_on_until_it_is_resolved():
    """An alert that fires is reported again with each news, until news says that it is resolved; then it is 0 once."""
    board, alert = NewsBoard(RUN), AlertChange("a1", "loss-nan", "critical", "firing", "loss is NaN", 1.0)
    key = ("alert", ("loss-nan", "critical"))
    assert values(board, alerts=[alert])[key] == 1.0
    assert values(board)[key] == 1.0
    assert values(board, alerts=[alert._replace(state="resolved")])[key] == 0.0
    assert key not in values(board)


def test_two_changes_of_an_alert_are_two_values():
    """An alert that fires and ends between two news has both values, in order."""
    alert = AlertChange("a1", "loss-nan", "critical", "firing", "loss is NaN", 1.0)
    found = NewsBoard(RUN).values(RunNews(alerts=[alert, alert._replace(state="resolved")]))
    changes = [(one.value, one.order) for one in found if one.target.family == "stepscope_alert"]
    assert changes == [(1.0, 0), (0.0, 1)]


def test_settings_are_few_and_plain():
    """Settings are the first scalars at the top of the configuration, and no text is long."""
    config = {"nested": {"a": 1}, "long": "x" * 9999, "on": True, **{f"s{i}": i for i in range(100)}}
    run = RunFacts("r", "p", "n", 1.0, "/r", config)
    found = [one.labels for one in NewsBoard(run).values(RunNews(verdict="v" * 9999)) if "key" in one.labels]
    assert len(found) == MOST_SETTINGS
    assert found[:3] == [
        {"key": "long", "value": "x" * 500},
        {"key": "on", "value": "true"},
        {"key": "s0", "value": "0"},
    ]
    assert all(
        len(text) <= 500 for one in NewsBoard(run).values(RunNews(verdict="v" * 9999)) for text in one.labels.values()
    )
