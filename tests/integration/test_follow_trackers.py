"""`stepscope follow` beside the real writers of other trackers: what they log, value by value, while they go on."""

from __future__ import annotations

import signal

import pytest

from tests.importers.vendors import PYTHON
from tests.integration.followers import count, ended, followed, points, series
from tests.integration.processes import until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

STEPS = 60
BEGIN = """
import os, sys, time
steps = int(sys.argv[1])
os.environ |= {"HOME": os.getcwd(), "HF_HUB_OFFLINE": "1", "TRACKIO_DIR": os.getcwd() + "/data"}
"""
MLFLOW = """
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
mlflow.set_tracking_uri(URI)
with mlflow.start_run(run_name="live"):
    mlflow.log_params({"lr": 0.1})
    for step in range(steps):
        mlflow.log_metrics({"loss": 1 / (step + 1), "acc": step / 3}, step=step)
        time.sleep(0.02)
"""
TRACKIO = """
import trackio
trackio.init(project="bridge", name="live", config={"lr": 0.1})
for step in range(steps):
    trackio.log({"loss": 1 / (step + 1), "acc": step / 3}, step=step)
    time.sleep(0.02)
trackio.finish()
"""
SWANLAB = """
import swanlab
swanlab.init(project="bridge", experiment_name="live", config={"lr": 0.1}, mode="offline", logdir="data")
for step in range(steps):
    swanlab.log({"loss": 1 / (step + 1), "acc": step / 3}, step=step)
    time.sleep(0.02)
swanlab.finish()
"""
LIGHTNING = """
from lightning.pytorch.loggers import CSVLogger
logger = CSVLogger("data", name="live", flush_logs_every_n_steps=5)
logger.log_hyperparams({"lr": 0.1})
for step in range(steps):
    logger.log_metrics({"loss": 1 / (step + 1), "acc": step / 3}, step=step)
    logger.save()
    time.sleep(0.02)
logger.finalize("success")
"""
VERL = """
import json
os.mkdir("data")
with open("data/metrics.jsonl", "w") as file:
    for step in range(steps):
        print(json.dumps({"step": step, "data": {"loss": 1 / (step + 1), "acc": step / 3}}), file=file, flush=True)
        time.sleep(0.02)
"""
WRITERS = {
    "mlflow.db": (MLFLOW.replace("URI", "'sqlite:///mlflow.db'"), "mlflow", "mlflow.db", "live"),
    "mlruns": (MLFLOW.replace("URI", "'file:' + os.getcwd() + '/mlruns'"), "mlflow", "mlruns", "live"),
    "trackio": (TRACKIO, "trackio", "data", "live"),
    "swanlab": (SWANLAB, "", "data", "live"),
    "lightning": (LIGHTNING, "lightning", "data", "live/version_0"),
    "verl": (VERL, "json", "data", "data"),
}
"""Script, the package that it needs (none: it has an environment of its own), what is followed, and the run's name."""
SAYS_ITS_END = {"mlflow.db", "mlruns", "swanlab"}


@pytest.mark.parametrize("name", WRITERS)
def test_live_run_of_a_tracker_is_recorded_as_it_was_logged(followers, tmp_path, name):
    """What a real tracker writes arrives while it writes, once and with its steps, name and config; so does its end."""
    script, package, path, called = WRITERS[name]
    if package:
        pytest.importorskip(package)
    elif not PYTHON.exists():
        pytest.skip("make bridges-env was not run")
    writer = followers.write(BEGIN + script, STEPS, **({} if package else {"python": str(PYTHON)}))
    follower = followers.follow(tmp_path / path, "--wait")
    until(lambda: count("acc") == STEPS, "every point")
    assert writer.wait() == 0, writer.stderr.read()
    follower.send_signal(signal.SIGINT)
    told = ended(follower)
    assert series("loss") == points(0, STEPS)
    assert series("acc") == [(step, step / 3) for step in range(STEPS)]
    past = followed()
    assert (past.state, past.name) == ("finished" if name in SAYS_ITS_END else "interrupted", called), told
    assert name == "verl" or past.config["lr"] in {0.1, "0.1"}
