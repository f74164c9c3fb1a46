"""Train on objects that are fetched one by one from a store with some latency."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LATENCY = 0.004  # seconds for one object, as a bucket in the same region has


class Store:
    """A stand-in for the client of an object store."""

    def get(self, key):
        time.sleep(LATENCY)
        generator = torch.Generator().manual_seed(key)
        return torch.randn(512, generator=generator)


class Remote(Dataset):
    def __init__(self, keys):
        self.keys, self.store = keys, Store()

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        x = self.store.get(self.keys[index])
        return x, (x[:4].sum() > 0).float()


def train(args):
    loader = DataLoader(Remote(list(range(1600))), batch_size=16, num_workers=args.workers, shuffle=True)
    model = nn.Sequential(nn.Linear(512, 1400), nn.ReLU(), nn.Linear(1400, 1400), nn.ReLU(), nn.Linear(1400, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss_fn = nn.BCEWithLogitsLoss()
    for number, (x, y) in enumerate(loader):
        loss = loss_fn(model(x).squeeze(1), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if number % 25 == 0:
            print("batch", number, "loss", round(loss.item(), 4))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    torch.manual_seed(0)
    train(parser.parse_args())
