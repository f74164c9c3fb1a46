"""Decay the learning rate; the scheduler was written for epochs and is called for batches."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--per-epoch", action="store_true")
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(4096, 96)
w = torch.randn(96, 12)
loader = DataLoader(TensorDataset(x, (x @ w).argmax(1)), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(96, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 12))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
for epoch in range(args.epochs):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
        if not args.per_epoch:
            scheduler.step()
    if args.per_epoch:
        scheduler.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
