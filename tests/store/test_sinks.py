"""What was sent to each sink, as files of the run."""

from __future__ import annotations

import os

import pytest

from stepscope.store.sinks import SinkState, hold, is_held, load_sink, read_sinks, state_path
from tests.exporters.recorded import make_run


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path)


def test_a_state_is_read_as_it_was_written(folder):
    """Every field survives, and a run without sinks has none."""
    assert read_sinks(folder) == []
    states = [SinkState(node, "mlflow-1", sent={"0.0": [[0, 4]]}, sent_rows=5, why="x") for node in ("a.1", "b.2")]
    for number, state in enumerate(states):
        state.save(folder, sync=bool(number))
    assert read_sinks(folder) == states
    assert state_path(folder, "mlflow-1", "a.1").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"sent": 7, "sent_rows": "many", "why": null, "behind_seconds": "x"}',
        '{"sent": {"0.0": [[1], "x", [1, "2"], [true, 3]]}}',
    ],
)
def test_a_damaged_state_is_an_empty_one(folder, text):
    """Whatever the file holds, reading it raises nothing, and only valid fields count."""
    path = state_path(folder, "mlflow-1", "a.1")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = load_sink(folder, "mlflow-1", "a.1")
    assert (found.node, found.key, found.sent_rows, found.why) == ("a.1", "mlflow-1", 0, "")
    assert not any(found.sent.values())


def test_one_process_sends_at_a_time(folder):
    """The lock is held by whoever sends, and free after its end."""
    assert not is_held(folder, "mlflow-1", "a.1")
    descriptor = hold(folder, "mlflow-1", "a.1")
    child = os.fork()
    if not child:
        os._exit(is_held(folder, "mlflow-1", "a.1") + 2 * (hold(folder, "mlflow-1", "a.1") is None))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    os.close(descriptor)
    assert not is_held(folder, "mlflow-1", "a.1")
