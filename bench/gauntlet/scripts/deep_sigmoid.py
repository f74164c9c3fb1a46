"""A very deep network of sigmoids, initialised small."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--activation", choices=("sigmoid", "relu"), default="sigmoid")
parser.add_argument("--depth", type=int, default=20)
args = parser.parse_args()
torch.manual_seed(0)


def block(width):
    linear = nn.Linear(width, width)
    if args.activation == "sigmoid":
        nn.init.normal_(linear.weight, std=0.02)
        return nn.Sequential(linear, nn.Sigmoid())
    nn.init.kaiming_normal_(linear.weight)
    return nn.Sequential(linear, nn.ReLU())


x = torch.randn(250 * 64, 64)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=64)
model = nn.Sequential(nn.Linear(64, 256), *(block(256) for _ in range(args.depth)), nn.Linear(256, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (xb, yb) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())
