"""Aim: values with a step, counted ones, and those of a context."""

from __future__ import annotations

import json

from values import LOSSES, main

READ = "read.json"


def write(folder):
    from aim import Run

    run = Run(repo=str(folder), system_tracking_interval=None, log_system_params=False)
    run["hparams"] = {"lr": 0.1}
    for step, loss in enumerate(LOSSES):
        run.track(loss, name="loss", step=step * 10)
        run.track(loss, name="counted")
        run.track(loss, name="loss", step=step, context={"subset": "val"})
    (folder / READ).write_text(json.dumps(points_of(run)))  # a closed run of Aim 3.29 is empty to its own reader
    run.close()


def points_of(run):
    found = {}
    for metric in run.metrics():
        steps, (values, *_) = metric.data.items_list()
        found["/".join([*metric.context.to_dict().values(), metric.name])] = list(zip(steps, values, strict=True))
    return found


def read(folder):
    return json.loads((folder / READ).read_text())


if __name__ == "__main__":
    main(write, read)
