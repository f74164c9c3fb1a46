"""Texts of very different lengths in batches of similar ones: steps differ, little is wasted."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(batch):
    return pad_sequence([t for t, _ in batch], batch_first=True), torch.tensor([y for _, y in batch])


random.seed(0)
torch.manual_seed(0)
lengths = [random.randint(6, 120) for _ in range(2400)]
texts = []
for n in lengths:
    label = random.randint(0, 1)
    texts.append((torch.randint(1 + 250 * label, 251 + 250 * label, (n,)), label))
order = sorted(range(len(texts)), key=lambda i: lengths[i])
batches = [order[i : i + 16] for i in range(0, len(order), 16)]
random.shuffle(batches)
loader = DataLoader(texts, batch_sampler=batches, collate_fn=collate)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(502, 32, padding_idx=0)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, 2)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0].mean(1))


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for tokens, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
