"""Warm-up and cosine decay, as language models are trained."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, WARMUP, CONTEXT = 260, 40, 32


class Characters(Dataset):
    def __init__(self):
        torch.manual_seed(0)
        table = torch.randint(0, 48, (48, 4))
        text = [0]
        for _ in range(40_000):
            text.append(table[text[-1], torch.randint(0, 4, (1,)).item()].item())
        self.text = torch.tensor(text)

    def __len__(self):
        return STEPS * 16

    def __getitem__(self, index):
        at = (index * 97) % (len(self.text) - CONTEXT - 1)
        piece = self.text[at : at + CONTEXT + 1]
        return piece[:-1], piece[1:]


class GPT(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.token, self.place = nn.Embedding(48, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 48)

    def forward(self, idx):
        x = self.token(idx) + self.place(torch.arange(idx.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def schedule(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
for step, (x, y) in enumerate(DataLoader(Characters(), batch_size=16)):
    logits = model(x)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    scheduler.step()
    if step % 50 == 0:
        print(f"iter {step}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.2e}")
