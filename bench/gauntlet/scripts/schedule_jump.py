"""A schedule by hand with a slip of the decimal point in its second stage."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--second-stage", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()


def learning_rate(step):
    if step < 20:
        return 1e-3 * (step + 1) / 20
    return 1e-3 if step < args.steps // 2 else args.second_stage


torch.manual_seed(0)
x = torch.randn(args.steps * 64, 64)
loader = DataLoader(TensorDataset(x, (x @ torch.randn(64, 10)).argmax(1)), batch_size=64)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (xb, yb) in enumerate(loader):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step)
    loss = F.cross_entropy(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, round(loss.item(), 4))
