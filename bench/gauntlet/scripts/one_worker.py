"""Video clips that are decoded by the workers of the loader."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", type=int, default=1)
parser.add_argument("--clips", type=int, default=960)
args = parser.parse_args()


class Clips(Dataset):
    """Clips that an external decoder (a process of its own) makes into frames."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.009)  # the decoder works, this process waits for its pipe
        clip = torch.full((8, 256), (index % 7) / 7.0)
        return clip + 0.1 * torch.randn(8, 256), index % 7


class ClipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(256, 192, batch_first=True)
        self.head = nn.Linear(192, 7)

    def forward(self, clips):
        _, (hidden, _) = self.encoder(clips)
        return self.head(hidden[-1])


def main():
    torch.manual_seed(0)
    loader = DataLoader(Clips(args.clips), batch_size=8, shuffle=True, num_workers=args.num_workers)
    model, criterion = ClipNet(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for batch, (clips, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(clips), labels)
        loss.backward()
        optimizer.step()
        if batch % 30 == 0:
            print(f"batch {batch}/{len(loader)} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
