"""A likelihood written by hand: the logarithm of a probability that can become zero."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--eps", type=float, default=0.0)
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(args.steps * 64, 100)
y = (x[:, 0] > 0).float()
x[120 * 64 : 120 * 64 + 8] *= 1e5  # a broken sensor
loader = DataLoader(TensorDataset(x, y), batch_size=64)
model = nn.Sequential(nn.Linear(100, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (xb, yb) in enumerate(loader):
    p = model(xb).squeeze(1)
    p = p.clamp(args.eps, 1 - args.eps) if args.eps else p
    loss = -(yb * torch.log(p) + (1 - yb) * torch.log(1 - p)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print(step, loss.item())
