from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from stepscope.exporters.sinks.mlflow import schema as mlflow_schema
from stepscope.exporters.sinks.sink import RunNews, SentRow
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.mlflow_cases import ROWS, SAME, expected, read, sink_at
from tests.exporters.sinks.mlflow_tables import rows_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed"),
]
WRITER = """
import sys
from mlflow import MlflowClient
from mlflow.entities import Metric
client = MlflowClient(sys.argv[1])
run = client.create_run("0").info.run_id
print(run, flush=True)
for first in range(0, 2000, 200):
    client.log_batch(run, metrics=[Metric("own", n, 1_795_000_000_000 + n, n) for n in range(first, first + 200)])
"""


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A database that MLflow's own command created for us."""
    path = tmp_path_factory.mktemp("mlflow") / "below" / "mlflow.db"
    mlflow_schema.create(path, dict(os.environ))
    return path


@pytest.fixture
def path(empty, tmp_path):
    return shutil.copy(empty, tmp_path / "mlflow.db")


def test_the_created_database_is_whole_and_alone(empty):
    """MLflow creates a missing database with the schema that we know, and leaves nothing beside it."""
    assert rows_of(empty, "SELECT version_num FROM alembic_version") == [(mlflow_schema.TESTED,)]
    assert [one.name for one in empty.parent.iterdir()] == ["mlflow.db"]


def test_mlflow_reads_every_point(path):
    """What MLflow's own client reads from the file is what was recorded."""
    sink = sink_at(f"mlflow+sqlite:///{path}")
    known = sink.open(RUN, {})
    sink.send(batch_of(ROWS))
    sink.send(batch_of(ROWS + SAME))
    sink.report(RunNews("interrupted", "Ctrl-C", 1_795_000_300.0, config=RUN.config, tags=RUN.tags))
    found = read(f"sqlite:///{path}", known["run_id"])
    assert found["points"] == expected(ROWS + SAME)
    assert found["latest"]["loss"] == repr(1 / 40)
    assert found["params"] == {"lr": "0.0003", "model.layers": "4", "model.name": "mlp", "tags": '["a", "b"]'}
    assert (found["info"]["status"], found["info"]["run_name"]) == ("KILLED", "first try")
    assert found["info"]["artifact_uri"].endswith(f"/mlruns/{known['experiment_id']}/{known['run_id']}/artifacts")
    assert (found["experiment"], found["runs"]) == ("mnist", [known["run_id"]])


def test_mlflow_may_write_the_same_file(path):
    """While MLflow's own client writes, we write, and neither loses a point."""
    command = [sys.executable, "-c", WRITER, f"sqlite:///{path}"]
    environ = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    sink = sink_at(f"mlflow+sqlite:///{path}")
    sink.open(RUN, {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as writer:
        own = writer.stdout.readline().strip()
        count = 0
        while writer.poll() is None or count == 0:
            sink.send(batch_of(SentRow(0, 0, n, n, 1_795_000_000 + n, {"a": 1.0}) for n in range(count, count + 100)))
            count += 100
        assert writer.returncode == 0, writer.stderr.read()[-2000:]
    counts = dict(rows_of(path, "SELECT key, count(*) FROM metrics GROUP BY key"))
    assert own
    assert counts == {"own": 2000, "a": count}
