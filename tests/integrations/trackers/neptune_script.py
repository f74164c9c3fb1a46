"""Neptune Scale, offline: metrics, configuration, a series of text."""

from __future__ import annotations

from values import LOSSES, main

FINITE = [loss for loss in LOSSES if abs(loss) < 9]  # Neptune refuses infinities


def write(folder):
    from neptune_scale import Run

    with Run(project="w/p", run_id="r", mode="offline", log_directory=str(folder / "neptune")) as run:
        run.log_configs({"lr": 0.1})
        for step, loss in enumerate(FINITE):
            run.log_metrics({"loss": loss, "deep/x": loss}, step=step)
        run.log_string_series({"note": "hello"}, step=1)


def read(folder):
    from neptune_scale.sync.operations_repository import OperationsRepository

    [path] = folder.glob("neptune/*/*.sqlite3")
    found = {}
    for row in OperationsRepository(path).get_operations(10**8):
        for name, value in getattr(row.operation, "append", {}).items():
            if value.HasField("float64"):
                found.setdefault(name, []).append((row.operation.step.whole, value.float64))
    return found


if __name__ == "__main__":
    main(write, read)
