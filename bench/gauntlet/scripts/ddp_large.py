"""Two ranks of DistributedDataParallel with many parameters and tiny batches."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--reduce-every", type=int, default=1)
parser.add_argument("--steps", type=int, default=80)
args = parser.parse_args()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.randn(args.steps * 4, 512)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=4)
    model = DDP(nn.Sequential(nn.Linear(512, 2400), nn.ReLU(), nn.Linear(2400, 2400), nn.ReLU(), nn.Linear(2400, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    for step, (xb, yb) in enumerate(loader, 1):
        with contextlib.nullcontext() if step % args.reduce_every == 0 else model.no_sync():
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
