"""Prints what MLflow's own client reads of a run, as JSON: `python mlflow_reader.py TRACKING_URI RUN_ID`."""

from __future__ import annotations

import json
import os
import sys


def main(uri, run_id):
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    run = client.get_run(run_id)
    print(
        json.dumps(
            {
                "info": dict(run.info),
                "params": run.data.params,
                "tags": run.data.tags,
                "latest": {key: repr(value) for key, value in run.data.metrics.items()},
                "points": [
                    [point.key, point.timestamp, point.step, repr(point.value)]
                    for key in sorted(run.data.metrics)
                    for point in client.get_metric_history(run_id, key)
                ],
                "runs": [one.info.run_id for one in client.search_runs([run.info.experiment_id])],
                "experiment": client.get_experiment(run.info.experiment_id).name,
            },
            default=str,
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
