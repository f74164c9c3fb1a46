"""The API as a user writes it; mypy reads this file, nothing runs it."""

from __future__ import annotations

import numpy as np

import stepscope


def train() -> str:
    """Record a run in every way there is."""
    run = stepscope.init(project="typing", name="first", config={"lr": 3e-4, "layers": [1, 2]}, dir="runs")
    for batch in run.data([[1.0], [2.0]]):
        with run.step(samples=len(batch)), run.phase("forward"):
            loss: float = batch[0]
            run.log({"loss": loss, "accuracy": np.float32(0.5)}, step=3)
            run.log(lr=3e-4, done=True)
    run.histogram("weights", np.zeros(10), step=3)
    run.event("checkpoint", path="a.pt", bytes=12)
    run.watch()
    run.finish()
    print(run.id, run.path, run.rank + run.attempt)
    return run.id


def with_block(settings: dict[str, object]) -> None:
    """Use a run as a context manager, with settings from a file."""
    with stepscope.init(
        project="typing", config=settings, config_file="stepscope.yaml", resume=True, run_id="a"
    ) as run:
        inner: stepscope.Run = run
        inner.log(loss=1.0)


def read() -> float:
    """Read a run back in every way there is."""
    newest = stepscope.runs("runs")[0]
    print(
        newest.path, newest.id, newest.name, newest.project, newest.state, newest.cause, newest.created, newest.duration
    )
    past = stepscope.open(newest.path)
    for name in past.names():
        series = past.series(name, rank=0, attempt=0, step_range=(0, 100), points=50)
        print(series.step, series.time, series.value, series.rank, series.attempt)
    for event in past.events("checkpoint"):
        print(event["kind"])
    for problem in past.problems():
        print(problem.upper())
    summary = past.summary("loss", window=100)
    print(past.id, past.path, past.name, past.project, past.state, past.cause, past.config, past.meta, past.attempts)
    return float(summary["mean"])
