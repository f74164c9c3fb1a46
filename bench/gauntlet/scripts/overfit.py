"""A large network, few labelled examples, many epochs."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--examples", type=int, default=256)
parser.add_argument("--epochs", type=int, default=40)
args = parser.parse_args()

torch.manual_seed(0)
truth = torch.randn(100, 5)


def make(count):
    x = torch.randn(count, 100)
    return TensorDataset(x, (x @ truth + 6 * torch.randn(count, 5)).argmax(1))


train_loader = DataLoader(make(args.examples), batch_size=32, shuffle=True)
val_loader = DataLoader(make(1024), batch_size=256)
model = nn.Sequential(nn.Linear(100, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
criterion = nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = sum(criterion(model(x), y).item() for x, y in val_loader) / len(val_loader)
    print(f"epoch {epoch}: train {loss.item():.3f} val {val_loss:.3f}")
