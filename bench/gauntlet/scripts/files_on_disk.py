"""Train on samples that are large files, which do not stay in the page cache."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--preload", action="store_true", help="read everything into memory first")
parser.add_argument("--steps", type=int, default=120)
args = parser.parse_args()


class Volumes(Dataset):
    """One scan per file; of each the middle slices are used."""

    def __init__(self, folder, count=48, size=1 << 20):
        rng = np.random.default_rng(0)
        self.paths = []
        for index in range(count):
            path = os.path.join(folder, f"scan_{index:03}.npy")
            np.save(path, rng.standard_normal(size).astype(np.float32))
            self.paths.append(path)
        os.sync()
        self.held = [self.read(path) for path in self.paths] if args.preload else None

    def read(self, path):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # the set is larger than memory
            scan = np.load(file)
        return torch.from_numpy(scan[:4096].copy())

    def __len__(self):
        return args.steps * 8

    def __getitem__(self, index):
        x = self.held[index % len(self.paths)] if self.held else self.read(self.paths[index % len(self.paths)])
        return x, x[:2].sum()


with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
    torch.manual_seed(0)
    data = DataLoader(Volumes(folder), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(4096, 512), nn.GELU(), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step, (x, y) in enumerate(data):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}: {loss.item():.4f}")
