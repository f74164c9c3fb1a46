"""A small transformer on dictionaries with an attention mask, padded to the longest length the model can take."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--max-length", type=int, default=192)
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()


class Sentences(Dataset):
    def __len__(self):
        return args.steps * 8

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(20, 33, (1,), generator=generator))
        ids = torch.zeros(args.max_length, dtype=torch.long)
        ids[:length] = torch.randint(2, 800, (length,), generator=generator)
        mask = (torch.arange(args.max_length) < length).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids[0] // 200}


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(800, width)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 4)

    def forward(self, input_ids, attention_mask):
        hidden = self.layers(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        weights = attention_mask.unsqueeze(-1).float()
        return self.head((hidden * weights).sum(1) / weights.sum(1))


torch.manual_seed(0)
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step, batch in enumerate(DataLoader(Sentences(), batch_size=8)):
    logits = model(batch["input_ids"], batch["attention_mask"])
    loss = nn.functional.cross_entropy(logits, batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
