"""What the gradient norm of a model of ten million parameters costs, beside one call of `torch._foreach_norm`.

Both are timed in turns on the same gradients, on one thread and by its CPU time; the ratio is the median of those of
each turn: neighbours speed up and slow down while it goes on, and medians of each apart may stand for other times.
Also: what a step costs in which no norm is due, and one in which the program's own clipping has told it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.figure import Figure, Options
from bench.processes import output_of

WIDTH, LAYERS = 256, 13
"""13 blocks of 12 * 256**2 weights: ten million parameters in 156 tensors."""


def measure(options: Options) -> list[Figure]:
    """Return the ratio, and the cost of the steps without a norm."""
    names = (
        ("grad_norm", "gradient norm of 10 M parameters / _foreach_norm", 1.2, ""),
        ("grad_norm_idle", "  a step in which none is due", None, "µs"),
        ("grad_norm_clipped", "  a step whose norm comes from the program's clipping", None, "µs"),
    )
    if importlib.util.find_spec("torch") is None:
        return [Figure(key, what, None, unit, limit, "torch not installed") for key, what, limit, unit in names]
    rounds = 30 if options.quick else 300
    printed, _, _ = output_of("-m", "bench.gradients", str(options.scratch / "gradients"), str(rounds))
    told = json.loads(printed.splitlines()[-1])
    sizes = f"{told['ours']:.2f} ms over {told['foreach']:.2f} ms, {told['parameters'] / 1e6:.1f} M parameters"
    peer = f"torch.nn.utils.get_total_norm {told['peer']:.2f}"
    beside = [f"{sizes}, {rounds} pairs; {peer}", "", ""]
    return [
        Figure(key, what, told[key], unit, limit, note)
        for (key, what, limit, unit), note in zip(names, beside, strict=True)
    ]


def model(torch: Any) -> Any:
    """Return linear layers as a transformer has them, with gradients."""
    nn = torch.nn
    blocks = [
        nn.Sequential(
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        for _ in range(LAYERS)
    ]
    made = nn.ModuleList(blocks)
    for each in made.parameters():
        each.grad = torch.randn_like(each)
    return made


def timed(call: Any) -> float:
    """Return the milliseconds of CPU time of a call."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e6


def main(arguments: list[str]) -> int:
    """Measure in this process and print the figures as JSON."""
    import torch

    import stepscope
    from stepscope.integrations.numerics.gradients import Gradients

    torch.set_num_threads(1)
    run = stepscope.init(project="gradients", dir=Path(arguments[0]))
    net = model(torch)
    tensors = [each.grad for each in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    norm = torch.nn.utils.get_total_norm(tensors)

    def step(watch: Any, *, clipped: bool = False) -> None:
        if clipped:
            watch.clipped(norm)
        watch.before_optimizer(optimizer)
        watch.after_optimizer(optimizer)
        watch.step_end()

    due, idle = Gradients(run, 1, budget=None), Gradients(run, 10**9)
    for watch in (due, idle):
        step(watch)
    ours, foreach, torchs = [], [], []
    for turn in range(int(arguments[1])):
        pair = [
            (ours, lambda: step(due)),
            (foreach, lambda: torch._foreach_norm(tensors)),  # noqa: SLF001 - what is compared with
            (torchs, lambda: torch.nn.utils.get_total_norm(tensors)),
        ]
        for times, call in pair if turn % 2 else pair[::-1]:
            times.append(timed(call))
    told = {
        "grad_norm": float(np.median(np.divide(ours, foreach))),
        "grad_norm_idle": float(np.median([timed(lambda: step(idle)) for _ in range(2000)])) * 1e3,
        "grad_norm_clipped": float(np.median([timed(lambda: step(idle, clipped=True)) for _ in range(2000)])) * 1e3,
        "ours": float(np.median(ours)),
        "foreach": float(np.median(foreach)),
        "peer": float(np.median(np.divide(torchs, foreach))),
        "parameters": sum(each.numel() for each in tensors),
    }
    run.finish()
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
