"""Train a small CNN on images that are augmented in Python, pixel row by pixel row."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def elastic(image):
    """Shift every row of the image a little."""
    out = torch.empty_like(image)
    for row in range(image.shape[1]):
        out[:, row] = torch.roll(image[:, row], random.randint(-2, 2), dims=-1)
    return out


def flip(image):
    return image.flip(-1) if random.random() < 0.5 else image


class Images(Dataset):
    def __init__(self, count, transform=None):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 10, (count,), generator=generator)
        self.images = torch.randn(count, 3, 32, 32, generator=generator) * 0.5
        self.images += self.labels[:, None, None, None] / 10
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 8 * 8, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--augment", choices=("elastic", "flip", "none"), default="elastic")
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(0)
    transform = {"elastic": elastic, "flip": flip, "none": None}[args.augment]
    loader = DataLoader(Images(640, transform), batch_size=32, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
