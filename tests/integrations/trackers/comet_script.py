"""Comet, offline: metrics with their step, in a context, nested; parameters and text."""

from __future__ import annotations

import json
import zipfile

from values import LOSSES, main


def write(folder):
    import comet_ml

    options = dict.fromkeys(("log_code", "log_graph", "log_git_metadata", "log_env_details"), False)
    experiment = comet_ml.OfflineExperiment(project_name="p", offline_directory=str(folder), **options)
    experiment.log_parameters({"lr": 0.1})
    for step, loss in enumerate(LOSSES):
        experiment.log_metric("loss", loss, step=step)
    experiment.log_metrics({"a": 1.0, "deep": {"x": 2.0}}, step=7)
    with experiment.train():
        experiment.log_metric("accuracy", 0.5)
    experiment.log_text("hello", step=7)
    experiment.end()


def read(folder):
    [path] = folder.glob("*.zip")
    found = {}
    with zipfile.ZipFile(path) as archive:
        for line in archive.read("messages.json").splitlines():
            message = json.loads(line)
            metric = message["payload"].get("metric") if message["type"] == "metric_msg" else None
            if metric is not None and not metric["metricName"].startswith(("sys.", "process")):
                context = message["payload"].get("context")
                name = f"{context}_{metric['metricName']}" if context else metric["metricName"]
                found.setdefault(name, []).append((metric["step"], float(metric["metricValue"])))
    return found


if __name__ == "__main__":
    main(write, read)
