"""Two ranks with DistributedDataParallel; one of them has more to do."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--slow-rank", type=int, default=-1)
parser.add_argument("--where", choices=("input", "compute"), default="compute")
parser.add_argument("--steps", type=int, default=80)
args = parser.parse_args()


class Samples(Dataset):
    def __init__(self, rank):
        self.slow = args.where == "input" and rank == args.slow_rank
        self.x = torch.randn(args.steps * 64, 128, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if self.slow:
            time.sleep(0.001)  # this node's disk is slow
        return self.x[index], self.x[index, :4].argmax()


class Net(nn.Module):
    def __init__(self, slow):
        super().__init__()
        self.slow = slow
        self.layers = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))

    def forward(self, x):
        if self.slow:
            time.sleep(0.03)  # a processor that is slowed down
        return self.layers(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(args.where == "compute" and rank == args.slow_rank))
    data = Samples(rank)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
