"""Save the whole state every few steps, because the cluster preempts jobs."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--steps", type=int, default=160)
    return parser.parse_args()


class Recommender(nn.Module):
    def __init__(self, items=40_000, width=64):
        super().__init__()
        self.items = nn.Embedding(items, width, sparse=True)
        self.body = nn.Sequential(
            nn.Linear(width * 2, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def forward(self, pairs):
        return self.body(self.items(pairs).flatten(1)).squeeze(1)


def main():
    args = parse()
    torch.manual_seed(0)
    pairs = torch.randint(0, 200, (args.steps * 64, 2))  # few items are popular
    loader = DataLoader(TensorDataset(pairs, (pairs[:, 0] % 7 < 3).float()), batch_size=64)
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
        if (step + 1) % args.save_every == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "last.pt")
    if os.path.exists("last.pt"):
        os.remove("last.pt")
    print("done", loss.item())


if __name__ == "__main__":
    main()
