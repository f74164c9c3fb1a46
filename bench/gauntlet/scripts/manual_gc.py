"""A reader that keeps many small Python objects, and a loop that collects garbage after every step to be safe."""

import argparse
import gc

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--no-collect", action="store_true")
parser.add_argument("--steps", type=int, default=50)
args = parser.parse_args()


class Records(Dataset):
    def __init__(self, count=30_000):
        self.records = [{"id": i, "tags": [str(i), "a"], "value": {"x": i * 0.001, "y": [i]}} for i in range(count)]

    def __len__(self):
        return args.steps * 32

    def __getitem__(self, index):
        record = self.records[index * 37 % len(self.records)]
        x = torch.zeros(128)
        x[record["id"] % 128] = 1.0
        return x, record["id"] % 4


torch.manual_seed(0)
loader = DataLoader(Records(), batch_size=32)
model = nn.Sequential(nn.Linear(128, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not args.no_collect:
        gc.collect()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
