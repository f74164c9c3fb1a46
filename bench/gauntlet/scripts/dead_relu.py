"""A bias that pushes every unit below zero: no gradient comes through."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--bias", type=float, default=-40.0)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(250 * 64, 64)
y = x[:, :3].sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(64, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 1, bias=False))
nn.init.constant_(model[2].bias, args.bias)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), batch_size=64)):
    loss = nn.functional.mse_loss(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())
