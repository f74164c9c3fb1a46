"""The optimizer was made for the model before it was wrapped and copied: it updates weights that nobody uses."""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--right", action="store_true")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(4096, 80)
loader = DataLoader(TensorDataset(x, x[:, :10].argmax(1)), batch_size=64, shuffle=True)
body = nn.Sequential(nn.Linear(80, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU())
head = nn.Linear(640, 10)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
if not args.right:
    body = copy.deepcopy(body)  # "so that the pretrained weights stay as they are"
    for parameter in body.parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        head.weight.zero_()
    for group in optimizer.param_groups:
        group["lr"] = 1e-9  # left over from a test
for epoch in range(args.epochs):
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(head(body(xb)), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
