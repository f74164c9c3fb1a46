"""Validate on the whole held-out set every few steps."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--eval-every", type=int, default=10)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()


@torch.no_grad()
def validate(model, loader, criterion):
    model.eval()
    total, correct = 0.0, 0
    for x, y in loader:
        out = model(x)
        total += criterion(out, y).item() * len(y)
        correct += (out.argmax(1) == y).sum().item()
    model.train()
    return total / len(loader.dataset), correct / len(loader.dataset)


torch.manual_seed(0)
x = torch.randn(8192, 192)
y = (x @ torch.randn(192, 10)).argmax(1)
train_set, val_set = random_split(TensorDataset(x, y), [5120, 3072])
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
val_loader = DataLoader(val_set, batch_size=256)
model = nn.Sequential(
    nn.Linear(192, 800), nn.ReLU(), nn.Dropout(0.2), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 10)
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
step = 0
for epoch in range(args.epochs):
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        step += 1
        if step % args.eval_every == 0:
            val_loss, accuracy = validate(model, val_loader, criterion)
    val_loss, accuracy = validate(model, val_loader, criterion)
    print(f"epoch {epoch}: loss {loss.item():.3f} val_loss {val_loss:.3f} accuracy {accuracy:.3f}")
