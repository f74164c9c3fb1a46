"""A text classifier whose batches mix short and very long texts."""

import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--bucket", action="store_true", help="batch texts of similar length")
parser.add_argument("--texts", type=int, default=1600)
args = parser.parse_args()


class Texts(Dataset):
    def __init__(self, count):
        rng = random.Random(0)
        self.lengths = [256 if rng.random() < 0.15 else rng.randint(8, 40) for _ in range(count)]
        self.texts = [torch.randint(1, 1000, (n,), generator=torch.Generator().manual_seed(n)) for n in self.lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], int(self.texts[index][0] % 2)


def collate(batch):
    return pad_sequence([t for t, _ in batch], batch_first=True), torch.tensor([y for _, y in batch])


def batches(lengths, size):
    order = list(range(len(lengths)))
    random.shuffle(order)
    if args.bucket:
        order.sort(key=lambda i: lengths[i])
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    random.shuffle(groups)
    return groups


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64, padding_idx=0)
        self.conv = nn.Conv1d(64, 128, 5, padding=2)
        self.head = nn.Linear(128, 2)

    def forward(self, tokens):
        features = torch.relu(self.conv(self.embed(tokens).transpose(1, 2)))
        return self.head(features.mean(-1))


torch.manual_seed(0)
random.seed(0)
dataset = Texts(args.texts)
loader = DataLoader(dataset, batch_sampler=batches(dataset.lengths, 16), collate_fn=collate)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for tokens, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
