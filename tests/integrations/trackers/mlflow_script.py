"""MLflow with an SQLite store: the fluent functions and the client, with and without a step."""

from __future__ import annotations

from values import LOSSES, main

FINITE = [loss for loss in LOSSES if abs(loss) < 9]  # the SQL store replaces infinities


def write(folder):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("e", artifact_location=str(folder / "artifacts")))
    with mlflow.start_run() as run:
        mlflow.log_params({"lr": 0.1, "layers": 3})
        mlflow.log_param("name", "x")
        for step, loss in enumerate(FINITE):
            mlflow.log_metrics({"loss": loss, "double": 2 * loss}, step=step)
        mlflow.log_metric("once", 1.0)
        mlflow.MlflowClient().log_metric(run.info.run_id, "client", 4.0, step=9)
        mlflow.log_text("hello", "note.txt")


def read(folder):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    [run] = client.search_runs([one.experiment_id for one in client.search_experiments()])
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: [(point.step, point.value) for point in points] for name, points in histories.items()}


if __name__ == "__main__":
    main(write, read)
