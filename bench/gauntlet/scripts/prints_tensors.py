"""A script that somebody was debugging: it prints activations and weights at every step."""

import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

ap = argparse.ArgumentParser()
ap.add_argument("--verbose", type=int, default=1)
ap.add_argument("--epochs", type=int, default=3)
args = ap.parse_args()

torch.set_printoptions(threshold=3000)
torch.manual_seed(1)
X = torch.randn(2000, 128)
Y = (X[:, 0] * X[:, 1] > 0).long()
dl = DataLoader(TensorDataset(X, Y), batch_size=50, shuffle=True)
net = nn.Sequential(nn.Linear(128, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 2))
opt = optim.Adam(net.parameters(), lr=1e-3)
for ep in range(args.epochs):
    for i, (xb, yb) in enumerate(dl):
        out = net(xb)
        loss = nn.CrossEntropyLoss()(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if args.verbose:
            print("batch", i, "loss", loss, "input", xb[:20], "output", out)
            print("grad", net[0].weight.grad[:20], "bias", net[2].bias)
    print("epoch", ep, "loss", loss.item())
