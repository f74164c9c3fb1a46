"""A training loop in the style of nanoGPT: settings at the top, evaluation now and then, one wandb.log."""
# ruff: noqa: N812, PLW1508 - as such scripts are written

import math
import os

import numpy as np
import torch
from torch.nn import functional as F

# -----------------------------------------------------------------------------
wandb_log = True
wandb_project = "owt"
wandb_run_name = "gpt2-mini"
batch_size = 8
block_size = 16
n_embd = 12
eval_interval = 5
eval_iters = 2
max_iters = 20
learning_rate = 3e-3
warmup_iters = 4
min_lr = 3e-4
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
config = {k: globals()[k] for k in config_keys}
# -----------------------------------------------------------------------------

torch.manual_seed(1337)
torch.set_num_threads(1)
rng = np.random.default_rng(1337)
data = rng.integers(0, 32, size=2000)


def get_batch():
    ix = rng.integers(0, len(data) - block_size - 1, size=batch_size)
    x = torch.stack([torch.from_numpy(data[i : i + block_size]) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size]) for i in ix])
    return x, y


model = torch.nn.Sequential(torch.nn.Embedding(32, n_embd), torch.nn.Linear(n_embd, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)


def loss_of(x, y):
    return F.cross_entropy(model(x).view(-1, 32), y.view(-1))


@torch.no_grad()
def estimate_loss():
    out = {}
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            losses[k] = loss_of(*get_batch()).item()
        out[split] = losses.mean()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


if wandb_log and int(os.environ.get("RANK", -1)) in (-1, 0):
    import wandb

    wandb.init(project=wandb_project, name=wandb_run_name, config=config)

iter_num = 0
running_mfu = -1.0
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if wandb_log:
            wandb.log(
                {
                    "iter": iter_num,
                    "train/loss": losses["train"],
                    "val/loss": losses["val"],
                    "lr": lr,
                    "mfu": running_mfu * 100,  # convert to percentage
                }
            )
    loss = loss_of(*get_batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    running_mfu = 0.01 * iter_num
    iter_num += 1
    if iter_num > max_iters:
        break
