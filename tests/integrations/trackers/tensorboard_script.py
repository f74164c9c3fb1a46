"""A SummaryWriter of torch: scalars with and without a step, groups of them, a histogram, text and an image."""

from __future__ import annotations

from values import LOSSES, main


def write(folder):
    import torch
    from torch.utils.tensorboard import SummaryWriter

    log(SummaryWriter(str(folder / "train")), torch.tensor(0.25, requires_grad=True))


def log(writer, tensor):
    for step, loss in enumerate(LOSSES):
        writer.add_scalar("loss", loss, step * 10)
    writer.add_scalar("once", 2.0)
    writer.add_scalar("tensor", tensor, 7)
    writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 3)
    writer.add_histogram("weights", tensor.detach().reshape(1).repeat(5), 3)
    writer.add_text("note", "hello", 3)
    writer.add_image("picture", tensor.detach().reshape(1, 1, 1).repeat(3, 4, 4), 3)
    writer.close()


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            name = tag if path == folder / "train" else f"{tag}/{path.name.removeprefix('both_')}"
            found[name] = [(point.step, point.value) for point in events.Scalars(tag)]
    return found


if __name__ == "__main__":
    main(write, read)
