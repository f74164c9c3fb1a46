"""A batch that is shorter than the code believes ends the training."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--drop-last", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(100 * 64 + 17, 96)
loader = DataLoader(TensorDataset(x, x[:, :8].argmax(1)), batch_size=64, drop_last=args.drop_last)
memory = torch.zeros(64, 500)
encoder, mixer, head = nn.Linear(96, 500), nn.Linear(500, 500), nn.Linear(500, 8)
parameters = [*encoder.parameters(), *mixer.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
for epoch in range(3):
    for xb, yb in loader:
        hidden = torch.relu(mixer(torch.relu(encoder(xb)) + 0.1 * memory))
        loss = nn.functional.cross_entropy(head(hidden), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory = hidden.detach()
    print(epoch, loss.item())
