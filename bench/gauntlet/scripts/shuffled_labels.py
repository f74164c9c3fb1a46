"""Labels that lost their order on the way: there is nothing to learn."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--sorted", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
images = torch.randn(300 * 64, 1, 14, 14)
labels = images.flatten(1)[:, :10].argmax(1)
if not args.sorted:
    labels = labels[torch.randperm(len(labels))]
loader = DataLoader(TensorDataset(images, labels), batch_size=64)
net = nn.Sequential(nn.Flatten(), nn.Linear(196, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 50 == 0:
        print(i, loss.item())
