"""A compiled model that gets another sequence length nearly every step."""

import argparse
import random

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--pad-to", type=int, default=0, help="pad every batch to this length")
parser.add_argument("--steps", type=int, default=40)
args = parser.parse_args()


class Tagger(nn.Module):
    def __init__(self, vocabulary=500, width=96):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 192, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 8)

    def forward(self, tokens):
        return self.out(self.encoder(self.embed(tokens)))


random.seed(0)
torch.manual_seed(0)
torch._dynamo.config.cache_size_limit = 64
model = Tagger()
compiled = torch.compile(model, backend="aot_eager", dynamic=False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    length = random.randrange(40, 72, 2)
    tokens = torch.randint(1, 500, (16, length))
    labels = tokens % 8
    if args.pad_to:
        tokens = nn.functional.pad(tokens, (0, args.pad_to - length))
        labels = nn.functional.pad(labels, (0, args.pad_to - length), value=-100)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(compiled(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} length {length} loss {loss.item():.3f}")
