"""Segmentation with a confusion matrix that is counted in Python after every step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 6


def update_confusion(matrix, predicted, target):
    for p, t in zip(predicted.flatten().tolist(), target.flatten().tolist()):
        matrix[t][p] += 1


def mean_iou(matrix):
    scores = []
    for c in range(CLASSES):
        union = sum(matrix[c]) + sum(row[c] for row in matrix) - matrix[c][c]
        scores.append(matrix[c][c] / union if union else 0.0)
    return sum(scores) / CLASSES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--metric-every", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    masks = torch.randint(0, CLASSES, (480, 64, 64))
    images = masks[:, None].float() + 0.3 * torch.randn(480, 1, 64, 64)
    loader = DataLoader(TensorDataset(images, masks), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, CLASSES, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    matrix = [[0] * CLASSES for _ in range(CLASSES)]
    for epoch in range(4):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            if (step + 1) % args.metric_every == 0:
                update_confusion(matrix, logits.argmax(1), y)
        print(f"epoch {epoch} loss {loss.item():.4f} mIoU {mean_iou(matrix):.3f}")


if __name__ == "__main__":
    main()
