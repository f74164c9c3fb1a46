"""Trackio, local: counted steps, a step of the script's own, text."""

from __future__ import annotations

import os

from values import LOSSES, main


def point_at(folder):
    os.environ.update(TRACKIO_DIR=str(folder / "trackio"), HF_HUB_OFFLINE="1", GRADIO_ANALYTICS_ENABLED="false")


def write(folder):
    point_at(folder)
    import trackio

    trackio.init(project="p", name="r", config={"lr": 0.1})
    for loss in LOSSES:
        trackio.log({"loss": loss})
    trackio.log({"late": 1.0}, step=20)
    trackio.log({"next": 2.0, "note": "hello"})
    trackio.finish()


def read(folder):
    point_at(folder)
    from trackio.sqlite_storage import SQLiteStorage

    found = {}
    for row in SQLiteStorage.get_logs("p", "r"):
        for name, value in row.items():
            if name not in {"step", "timestamp"} and isinstance(value, (int, float)):
                found.setdefault(name, []).append((row["step"], value))
    return found


if __name__ == "__main__":
    main(write, read)
