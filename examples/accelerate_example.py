"""A loop with Accelerate, watched: its tracker records what is logged, `watch` finds steps and phases.

    python examples/accelerate_example.py

Runs on a CPU in seconds; also under `accelerate launch`. Needs `pip install accelerate`.
"""

from __future__ import annotations

import sys

try:
    import torch
    from accelerate import Accelerator
except ImportError as error:
    sys.exit(f"cannot run this example: {error}; pip install accelerate torch")

import stepscope
from stepscope.callbacks import StepscopeTracker


def main():
    torch.manual_seed(0)
    tracker = StepscopeTracker("examples", name="accelerate")
    accelerator = Accelerator(log_with=[tracker], gradient_accumulation_steps=2)
    accelerator.init_trackers("examples", config={"lr": 1e-3, "batch": 128})

    model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(3000, 256)  # no multiple of 2 * 128: the last step is short
    dataset = torch.utils.data.TensorDataset(inputs, inputs[:, :10].argmax(1))
    loader = torch.utils.data.DataLoader(dataset, batch_size=128, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run = tracker.run
    run.watch(model, optimizer, loader)  # finds backward by itself

    seen = 0
    for _ in range(3):
        for x, y in run.data(loader):  # what Accelerate adds to its loader is waiting for data too
            with accelerator.accumulate(model):
                with run.phase("forward"):  # with the loss, which is computed outside of the model
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                with run.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
            seen += len(x)
            if accelerator.sync_gradients:
                with run.step(samples=seen):  # Accelerate fetches ahead: only the loop knows what a step has used
                    accelerator.log({"loss": loss})  # a tensor: nothing waits for a device
                seen = 0
    accelerator.end_training()

    if accelerator.is_main_process:
        past = stepscope.open(stepscope.runs()[0].path)
        samples, loss = past.series("samples").value, past.series("loss").value
        print(f"{past.state}: {len(samples)} steps, {samples.sum():.0f} samples, loss {loss[0]:.2f} -> {loss[-1]:.2f}")
        print(f"look at it: stepscope show {past.path}")


if __name__ == "__main__":
    main()
