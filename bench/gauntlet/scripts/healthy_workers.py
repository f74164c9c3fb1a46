"""Two workers that keep up with the model; validation with its own loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        label = index % 3
        time = torch.linspace(0, 6.28, 256)
        return torch.sin(time * (label + 1)) + 0.3 * torch.randn(256, generator=generator), label


def main():
    torch.manual_seed(0)
    train = DataLoader(Signals(2400, 0), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    held_out = DataLoader(Signals(192, 10**6), batch_size=64)
    model = nn.Sequential(nn.Linear(256, 1100), nn.ReLU(), nn.Linear(1100, 1100), nn.ReLU(), nn.Linear(1100, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            held = sum(criterion(model(x), y).item() for x, y in held_out) / len(held_out)
        print(f"epoch {epoch} loss {loss.item():.4f} held out {held:.4f}")


if __name__ == "__main__":
    main()
