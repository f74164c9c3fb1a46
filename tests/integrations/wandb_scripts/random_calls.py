"""Random calls of wandb.log: with and without a step, rows in several calls, metrics with axes, nested names."""

import random

import wandb

rng = random.Random(11)
run = wandb.init(project="random", config={"seed": 11})
wandb.define_metric("epoch")
wandb.define_metric("val/*", step_metric="epoch")
wandb.define_metric("free/*", step_metric="epoch", step_sync=False)
run.log({"epoch": 0})
step = 0
for call in range(300):
    kind = rng.choice(["plain", "plain", "step", "open", "close"])
    row = {f"{rng.choice(['a', 'val/b', 'c/d'])}{call % 7}/{kind}": rng.random()}
    if kind in {"plain", "close"} and rng.random() < 0.3:  # once in a row: W&B keeps the last, we keep all
        row["epoch"] = call // 10
    if rng.random() < 0.2:
        row[f"free/{call}"] = rng.random()
    if rng.random() < 0.2:
        row[f"nested{call}"] = {"x": rng.random(), "y": {"z": call}}
    if kind == "plain":
        run.log(row)
    elif kind == "step":
        step = max(step, run.step) + rng.randint(1, 3)
        run.log(row, step=step)
    elif kind == "open":
        run.log({f"open/{call}": rng.random()}, commit=False)
    else:
        run.log(row, step=run.step, commit=True)
