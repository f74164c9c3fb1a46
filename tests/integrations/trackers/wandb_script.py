"""W&B offline: counted steps, uncommitted rows, a step of the script's own, an axis, nested dicts, media."""

from __future__ import annotations

import os

from values import LOSSES, main


def write(folder):
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false", WANDB_DIR=str(folder))
    import numpy as np
    import wandb

    run = wandb.init(project="p", config={"lr": 0.1})
    wandb.config.update({"layers": 3})
    for loss in LOSSES:
        wandb.log({"loss": loss, "deep": {"x": loss}})
    wandb.log({"first": 1.0}, commit=False)
    run.log({"second": 2.0})
    run.define_metric("val/*", step_metric="epoch")
    run.log({"val/accuracy": 0.5, "epoch": 3})
    run.log({"val/accuracy": 0.25})
    run.log({"late": 1.0}, step=50)
    run.log({"epoch": 4}, step=60)
    run.log({"val/accuracy": 0.75}, step=60)
    run.log({"note": "hello", "picture": wandb.Image(np.zeros((4, 4, 3), "uint8")), "spread": wandb.Histogram([1, 2])})
    run.log({"never": 1.0}, commit=False)
    wandb.finish()


def read(folder):
    from stepscope.importers.binary.wandb import FORMAT  # W&B itself has no reader of its files any more

    [path] = folder.glob("wandb/offline-run-*/*.wandb")
    run = FORMAT.read(str(path))
    names = [name for name in run.names() if not name.startswith(("system/", "memory/", "cpu/", "picture", "epoch"))]
    found = {name: run.series(name) for name in names}
    return {name: list(zip(one.step.tolist(), one.value.tolist(), strict=True)) for name, one in found.items()}


if __name__ == "__main__":
    main(write, read)
