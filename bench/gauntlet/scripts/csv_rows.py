"""Train a classifier on rows of text that are parsed again every time they are read."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--cache", action="store_true", help="parse every row once, before training")
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()
torch.manual_seed(0)


class Rows(Dataset):
    def __init__(self, count=2048, width=600):
        values = torch.randn(count, width)
        self.lines = [",".join(f"{v:.6f}" for v in row) for row in values.tolist()]
        self.labels = (values[:, :10].sum(1) > 0).long()
        self.parsed = [self.parse(line) for line in self.lines] if args.cache else None

    def parse(self, line):
        numbers = []
        for field in line.split(","):
            numbers.append(float(field))
        return torch.tensor(numbers)

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        x = self.parsed[index] if self.parsed else self.parse(self.lines[index])
        return x, self.labels[index]


loader = DataLoader(Rows(), batch_size=256, shuffle=True)
model = nn.Sequential(nn.Linear(600, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
criterion = nn.CrossEntropyLoss()

step = 0
while step < args.steps:
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1
        if step >= args.steps:
            break
