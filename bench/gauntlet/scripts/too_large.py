"""The batch grows until memory does not suffice."""

import argparse
import resource

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--grow", type=float, default=1.06)
parser.add_argument("--limit-gib", type=float, default=0.5, help="of memory beyond what is in use, as a container has")
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(args.limit_gib * 2**30),) * 2)
size = 64.0
for step in range(200):
    x = torch.randn(int(size), 64)
    loss = nn.functional.mse_loss(model(x), x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    size *= args.grow
    if step % 20 == 0:
        print(step, "batch size", int(size), "loss", loss.item())
