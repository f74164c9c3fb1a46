"""A plain recurrent network over long sequences, without clipping."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--gain", type=float, default=1.6)
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()


class Recurrent(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inputs, self.state, self.out = (
            nn.Linear(4, width),
            nn.Linear(width, width, bias=False),
            nn.Linear(width, 1),
        )
        nn.init.orthogonal_(self.state.weight, args.gain if not args.clip else 1.0)

    def forward(self, x):
        hidden = torch.zeros(len(x), self.state.in_features)
        for at in range(x.shape[1]):
            hidden = torch.relu(self.inputs(x[:, at]) + self.state(hidden)) / 1.4
        return self.out(hidden)


torch.manual_seed(0)
x = torch.randn(args.steps * 32, 40, 4)
x[100 * 32 :] *= torch.linspace(1, 60, len(x) - 100 * 32)[:, None, None]  # the signal grows louder
y = x[:, :, 0].clamp(-1, 1).mean(1, keepdim=True)
model = Recurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
for step, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), batch_size=32)):
    loss = nn.functional.mse_loss(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    if args.clip:
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
