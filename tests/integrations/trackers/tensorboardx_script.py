"""A SummaryWriter of tensorboardX, used as that of torch."""

from __future__ import annotations

import tensorboard_script
from values import main


def write(folder):
    import torch
    from tensorboardX import SummaryWriter

    tensorboard_script.log(SummaryWriter(str(folder / "train")), torch.tensor(0.25))


if __name__ == "__main__":
    main(write, tensorboard_script.read)
