"""A wide network: nearly all of the time is matrix products."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(args.steps * 128, 256)
loader = DataLoader(TensorDataset(x, x[:, :16].argmax(1)), batch_size=128)
model = nn.Sequential(
    nn.Linear(256, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 16)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step, (xb, yb) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f}")
