from __future__ import annotations

import pytest

pytest.importorskip("accelerate")
import torch
from accelerate import Accelerator

import stepscope
from stepscope.callbacks import StepscopeTracker, register
from tests.integrations.programs import last_run, other_share, run_program

# Accelerate warns about its own dependencies.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.processes, pytest.mark.training]


def test_tracker_records_what_is_logged():
    """Configuration and rows are in a run of the project, which ends with the training; tensors too."""
    tracker = StepscopeTracker("tracked")
    accelerator = Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("ignored for an object", config={"lr": 0.1})
    for step in range(3):
        accelerator.log({"loss": torch.tensor(1.0 / (step + 1)), "accuracy": 0.5}, step=step)
    accelerator.end_training()
    past = last_run()
    assert (past.state, past.path.parent.name) == ("finished", "tracked")
    assert past.series("loss").value.tolist() == pytest.approx([1, 0.5, 1 / 3])
    assert past.series("accuracy").step.tolist() == [0, 1, 2]
    [event] = [event for event in past.events() if event["kind"] == "hyperparameters"]
    assert event["values"] == {"lr": 0.1}


def test_tracker_is_known_by_name():
    """After `register("accelerate")`, `log_with="stepscope"` records, under the project that `init_trackers` names."""
    pytest.importorskip("accelerate", minversion="1.15")  # older ones take objects only
    register("accelerate")
    accelerator = Accelerator(cpu=True, log_with="stepscope")
    accelerator.init_trackers("named")
    accelerator.log({"loss": 1.0}, step=0)
    assert accelerator.get_tracker("stepscope", unwrap=True).project == "named"
    accelerator.end_training()
    assert last_run().series("loss").value.tolist() == [1]


def test_run_of_the_user_stays_open():
    """A run that the program began is used, and not ended by `end_training`."""
    with stepscope.init(project="own") as run:
        accelerator = Accelerator(cpu=True, log_with=[StepscopeTracker()])
        accelerator.init_trackers("x")
        accelerator.log({"loss": 1.0})
        accelerator.end_training()
        assert run.recording
    assert stepscope.open(run.path).series("loss").value.tolist() == [1]


def test_tracker_that_fails_does_not_stop_the_training(capsys):
    """What cannot be logged is told once, and training goes on."""
    tracker = StepscopeTracker()
    for _ in range(2):
        tracker.log(7)
    assert capsys.readouterr().err.count("cannot go on in StepscopeTracker.log: TypeError") == 1
    tracker.finish()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_example_runs(tmp_path):
    """The example trains on a CPU; samples are right with accumulation and a short last step."""
    printed = run_program("examples/accelerate_example.py", folder=tmp_path)
    assert "finished: 36 steps, 9000 samples" in printed
    past = last_run()
    assert past.series("samples").value[:12].tolist() == [256] * 11 + [184]
    assert other_share(past) <= 0.05
