"""An exponential schedule whose factor is on the wrong side of one."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--gamma", type=float, default=1.0257)
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(args.steps * 64, 96)
y = x[:, :6].sum(1, keepdim=True) + 0.1 * torch.randn(len(x), 1)
model = nn.Sequential(nn.Linear(96, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=args.gamma)
criterion = nn.MSELoss()
for step, (inputs, targets) in enumerate(DataLoader(TensorDataset(x, y), batch_size=64)):
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 25 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
