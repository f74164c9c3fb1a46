"""Watch every parameter: statistics of all weights and gradients are read one number at a time, at every step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--report-every", type=int, default=1, help="steps between two looks at the parameters")
args = parser.parse_args()


def report(model):
    found = {}
    for name, parameter in model.named_parameters():
        for kind, tensor in (("weight", parameter.detach()), ("grad", parameter.grad)):
            found[f"{kind}/{name}/mean"] = tensor.mean().item()
            found[f"{kind}/{name}/std"] = tensor.std().item()
            found[f"{kind}/{name}/median"] = tensor.median().item()
            found[f"{kind}/{name}/max"] = tensor.abs().max().item()
            found[f"{kind}/{name}/p99"] = tensor.flatten().sort().values[-max(1, tensor.numel() // 100)].item()
    return found


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 192), *(Block(192) for _ in range(6)), nn.Linear(192, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
x = torch.randn(4000, 64)
loader = DataLoader(TensorDataset(x, x[:, :10].argmax(1)), batch_size=128, shuffle=True, drop_last=True)
history = []
for epoch in range(2):
    for number, (inputs, targets) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % args.report_every == 0:
            history.append(report(model))
    print(epoch, loss.item(), len(history))
