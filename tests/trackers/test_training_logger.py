from __future__ import annotations

import json
import math

import pytest

from stepscope.cli.main import main
from stepscope.metrics import TrainingLogger
from stepscope.sources.opened_run import open_run
from stepscope.store.catalog import runs


class Run:
    def __init__(self):
        self.rows = []

    def log(self, values, *, step=None):
        self.rows.append((step, values))


@pytest.fixture
def logger(tmp_path):
    """A logger with three steps."""
    found = TrainingLogger(tmp_path / "logs", "verifier_iter1", wall=lambda: 1.7e9)
    for step in range(3):
        found.log_step(step=step, metrics={"loss": 1.0 / (step + 1), "reward": 0.5}, scores=[1.0, 0.5, None])
    return found


@pytest.mark.promise("S4-030", "S4-031", "S4-033", "S4-034", "S4-048")
def test_the_export_has_the_documents_shape(logger):
    """Name, summaries, scores and raw values are there, in one order, as strict JSON."""
    path = logger.export_all()
    text = path.read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=pytest.fail)
    assert path.name == "verifier_iter1_metrics.json"
    assert found["experiment_name"] == "verifier_iter1"
    assert {"count", "mean", "std", "min", "max", "p95"} <= found["metric_summaries"]["loss"].keys()
    assert found["raw_metrics"] == {"loss": [1.0, 0.5, 1 / 3], "reward": [0.5] * 3}
    assert found["raw_steps"]["loss"] == [0, 1, 2]
    assert found["score_distribution"]["score_counts"] == {"0.5": 3, "1.0": 3}
    assert found["score_distribution"]["mean_score"] == 0.75
    assert logger.export_all().read_text(encoding="utf-8") == text


@pytest.mark.promise("S4-032")
def test_a_checkpoint_keeps_the_figures_of_its_moment(logger):
    """Each tag has a file of its own; a later step does not change it."""
    path = logger.save_checkpoint_metrics("step_100")
    before = path.read_text(encoding="utf-8")
    logger.log_step(step=3, metrics={"loss": 9.0})
    assert path.name == "verifier_iter1_step_100.json"
    assert logger.save_checkpoint_metrics("epoch0") != path
    assert path.read_text(encoding="utf-8") == before
    assert json.loads(before)["metric_summaries"]["loss"]["count"] == 3


def test_names_stay_inside_the_folder(tmp_path):
    """A name with slashes or dots leads nowhere else."""
    logger = TrainingLogger(tmp_path / "logs", "../../evil")
    logger.log_step(1, {"loss": 1.0})
    assert logger.save_checkpoint_metrics("../up").parent == tmp_path / "logs"


def test_nothing_raises_into_the_training(tmp_path, capsys):
    """Odd values are refused, NaN is kept, a folder that cannot be made is said, once."""
    (tmp_path / "file").write_text("")
    logger = TrainingLogger(tmp_path / "file", "x", run=object())
    for _ in range(2):
        logger.log_step(metrics={"loss": math.nan, "text": "no number"}, scores=["x"])
        assert logger.export_all() is None
    error = capsys.readouterr().err
    assert error.count("cannot write") == error.count("cannot log to the run") == 1
    assert logger.get_summary()["metric_summaries"]["loss"]["nonfinite"] == 2


def test_a_run_is_logged_to():
    """With a run the metrics go there too, with the mean score and the share of invalid ones."""
    run = Run()
    logger = TrainingLogger("unused", "x", run=run)
    logger.log_step(step=1, metrics={"loss": 1.0}, scores=[1.0, None])
    assert run.rows == [(1, {"loss": 1.0, "score/mean": 1.0, "invalid_ratio": 0.5})]


@pytest.mark.promise("S4-047")
def test_an_export_can_go_to_tensorboard_later(logger, tmp_path, capsys):
    """The JSON is imported as a run, exact, and from there written for TensorBoard."""
    logger.log_step(step=7, metrics={"loss": math.inf})
    assert main(["import", str(logger.export_all()), "--dir", str(tmp_path / "runs")]) == 0
    [info] = runs(tmp_path / "runs")
    series = open_run(info.path).series("loss")
    assert (series.step.tolist(), series.value.tolist()) == ([0, 1, 2, 7], [1.0, 0.5, 1 / 3, math.inf])
    assert info.name == "verifier_iter1"
    target = tmp_path / "tb"
    assert main(["export", str(info.path), "--format", "tensorboard", "--output", str(target)]) == 0
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no TensorBoard here")
    read = module.EventAccumulator(str(target)).Reload()
    assert [event.step for event in read.Scalars("loss")] == [0, 1, 2, 7]
    capsys.readouterr()
