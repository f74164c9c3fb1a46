"""Fit a small network to a noisy function with plain SGD."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--momentum", type=float, default=0.9)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(4096, 64)
y = torch.sin(x[:, :4]).sum(1, keepdim=True) + 0.1 * torch.randn(4096, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
criterion = nn.HuberLoss(delta=10.0)
for epoch in range(args.epochs):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.5f}")
