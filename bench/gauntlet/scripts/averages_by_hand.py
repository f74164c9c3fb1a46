"""Average the gradients of two ranks by hand, one parameter after another, after every micro-batch."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--average-every", type=int, default=1)
parser.add_argument("--steps", type=int, default=50)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
x = torch.randn(args.steps * 16, 256)
loader = DataLoader(TensorDataset(x, x[:, :8].argmax(1)), batch_size=16)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (xb, yb) in enumerate(loader, 1):
    loss = nn.functional.cross_entropy(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    if step % args.average_every == 0:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(step, loss.item(), flush=True)
dist.destroy_process_group()
