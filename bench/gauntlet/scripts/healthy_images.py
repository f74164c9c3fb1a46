"""An ordinary image classifier: epochs, validation, a checkpoint after each epoch."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, 1)
        self.conv2 = nn.Conv2d(12, 24, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(24 * 10 * 10, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}/{len(loader)}]\tLoss: {loss.item():.6f}")


def test(model, loader):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    print(f"Test set: loss {test_loss / len(loader.dataset):.4f}, accuracy {correct}/{len(loader.dataset)}")


def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = 0.7 * torch.randn(count, 1, 24, 24, generator=generator)
    for digit in range(10):
        images[labels == digit, :, 2 * digit : 2 * digit + 4] += 1.0
    return TensorDataset(images, labels)


def main():
    torch.manual_seed(1)
    train_loader = DataLoader(data(2560, 0), batch_size=64, shuffle=True)
    test_loader = DataLoader(data(256, 1), batch_size=128)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=0.5)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 6):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
        torch.save(model.state_dict(), "net.pt")
    os.remove("net.pt")


if __name__ == "__main__":
    main()
