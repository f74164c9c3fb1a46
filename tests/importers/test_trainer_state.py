from __future__ import annotations

import json

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.logs import trainer_state
from tests.importers.foreign import shared


def test_the_real_state_is_read_to_its_last_entry():
    """Every number of the log stands at its step; the rest of the state is facts."""
    path = shared("hf-trainer-state/trainer_state.json")
    run = trainer_state.FORMAT.read(str(path))
    history = json.loads(path.read_text())["log_history"]
    rows = [row for row in history if "loss" in row]
    assert run.series("loss").value.tolist() == [row["loss"] for row in rows]
    assert run.series("loss").step.tolist() == [row["step"] for row in rows]
    assert sum(len(run.series(name)) for name in run.names()) == sum(len(row) - 1 for row in history)
    assert run.facts["max_steps"] == 12030
    assert "log_history" not in run.facts
    assert run.notes == ()


def test_the_mean_at_the_end_is_not_a_point_of_the_loss(tmp_path):
    """`train_loss`, which the Trainer logs once at its end, stays what it is."""
    path = tmp_path / "trainer_state.json"
    path.write_text(
        '{"log_history": [{"loss": 2.0, "step": 1}, {"train_loss": 3.0, "step": 1}, 5, {"loss": "NaN", "step": 2}]}'
    )
    run = trainer_state.FORMAT.read(str(path))
    assert run.series("loss").step.tolist() == [1, 2]
    assert run.series("train_loss").value.tolist() == [3.0]
    assert run.notes == ("entries of the log that are no objects, left out",)


def test_secrets_of_the_state_are_not_kept(tmp_path):
    """Facts pass the same redaction as a run's own configuration."""
    path = tmp_path / "x"
    path.write_text('{"log_history": [], "trial_params": {"api_key": "sk-abcdef0123456789abcdef", "lr": 0.1}}')
    facts = trainer_state.FORMAT.read(str(path)).facts
    assert facts["trial_params"] == {"api_key": "[redacted]", "lr": 0.1}


@pytest.mark.parametrize("text", ['{"log_history": 1}', "[]", '{"log_history": [', '{"a":' * 100_000])
def test_what_is_no_state_is_an_error(text, tmp_path):
    """A document that is cut, too deep or no state is said to be so."""
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(StepscopeError, match="cannot read"):
        trainer_state.FORMAT.read(str(path))


def test_states_of_other_names_in_one_folder_are_runs_of_their_own(tmp_path):
    """Only checkpoints repeat a run: two files side by side are two runs."""
    for name, loss in (("a.json", 1.0), ("b.json", 2.0)):
        state = {"global_step": 1, "log_history": [{"step": 1, "loss": loss}]}
        (tmp_path / name).write_text(json.dumps(state))
    assert [run.series("loss").value.tolist() for run in formats.read(str(tmp_path))] == [[1.0], [2.0]]
