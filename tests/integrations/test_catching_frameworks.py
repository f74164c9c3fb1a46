"""Lightning, Transformers and Accelerate on the CPU: what their loggers get is in our run, each value once."""

from __future__ import annotations

import csv

import pytest

import stepscope
from tests.integration.processes import wait_until_written

# The frameworks warn about their own dependencies.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.training, pytest.mark.slow, pytest.mark.processes]


@pytest.fixture
def run(one_thread):
    """Return a run that catches."""
    with stepscope.init(project="p", recorder__catch=True) as run:
        yield run


def points(run, name):
    """End a run; return the points of a name."""
    run.finish()
    series = wait_until_written(run).series(name)
    return list(zip(series.step.tolist(), series.value.tolist(), strict=True))


def fit(loggers):
    """Train a little, and log each step."""
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, index):
            loss = self.layer(batch).square().mean()
            self.log("value", float(index) / 8)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.ones(4, 2))
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=loggers, log_every_n_steps=1, default_root_dir=".", **quiet
    ).fit(Model(), loader)


EXPECTED = [(step, step / 8) for step in range(4)]


@pytest.mark.parametrize("names", [(), ("csv",), ("tensorboard",), ("csv", "tensorboard", "stepscope")])
def test_values_of_lightning_are_recorded_once(run, names, tmp_path):
    """What `self.log` logs is recorded at Lightning's step, whichever loggers there are; a CSV file has the same."""
    pytest.importorskip("lightning")
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    from stepscope.callbacks import StepscopeLogger

    made = {"csv": lambda: CSVLogger("."), "tensorboard": lambda: TensorBoardLogger("tb"), "stepscope": StepscopeLogger}
    fit([made[name]() for name in names])
    assert points(run, "value") == EXPECTED
    for path in tmp_path.rglob("metrics.csv"):
        with path.open() as file:
            assert [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file)] == EXPECTED


@pytest.mark.parametrize("report", ["none", "tensorboard", "trackers"])
def test_values_of_a_trainer_are_recorded_once(run, report, monkeypatch):
    """What a Trainer reports stands at its step, under its own names or those of its trackers."""
    pytest.importorskip("transformers")
    pytest.importorskip("tensorboard")
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return {"loss": self.layer(x).square().mean()}

    trackers = ["tensorboard", "mlflow"] if report == "trackers" else [report]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    arguments = TrainingArguments(
        "out", max_steps=3, logging_steps=1, report_to=trackers, use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    trainer = Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(2)}] * 4)
    trainer.train()
    logged = [(row["step"], row["loss"]) for row in trainer.state.log_history if "loss" in row]
    found = points(run, "loss" if report == "none" else "train/loss")
    assert found == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in logged]


@pytest.mark.parametrize("tracker", [None, "tensorboard"])
def test_values_of_accelerate_are_recorded_once(run, tracker):
    """What `accelerator.log` is handed stands at its step, with a tracker that is caught or without any."""
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with=tracker, project_dir=".")
    accelerator.init_trackers("p")
    for step, value in EXPECTED:
        accelerator.log({"value": value}, step=step)
    accelerator.end_training()
    assert points(run, "value") == EXPECTED
