"""Add up the loss for the log line, and with it every graph of the epoch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--detach", action="store_true")
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(args.steps * 64, 128)
loader = DataLoader(TensorDataset(x, x[:, :2].sum(1, keepdim=True)), batch_size=64)
encoder = nn.Sequential(nn.Linear(128, 800), nn.ReLU(), nn.Linear(800, 800))
head = nn.Linear(800, 1)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
features, outputs = [], []
for step, (xb, yb) in enumerate(loader):
    hidden = encoder(xb)
    prediction = head(hidden)
    loss = nn.functional.mse_loss(prediction, yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(prediction.detach() if args.detach else prediction)
    features.append(hidden.mean().item() if args.detach else hidden)
    if step % 50 == 0:
        print(step, loss.item())
