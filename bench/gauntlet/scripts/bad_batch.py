"""Train on sensor data in which a few readings are in the wrong unit."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--clean", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(300 * 64, 48)
y = x[:, :6].sum(1, keepdim=True) + 0.2 * torch.randn(len(x), 1)
if not args.clean:
    first = 180 * 64
    y[first : first + 5 * 64] *= 60  # five batches in millimetres instead of centimetres
loader = DataLoader(TensorDataset(x, y), batch_size=64)
model = nn.Sequential(nn.Linear(48, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
criterion = nn.L1Loss()
for number, (inputs, targets) in enumerate(loader):
    loss = criterion(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if number % 50 == 0:
        print(number, loss.item())
