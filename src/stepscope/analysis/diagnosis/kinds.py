"""The words of a verdict: every kind of finding, stable, with what it means."""

from __future__ import annotations

from stepscope.analysis.diagnosis import grpo

KINDS: dict[str, str] = {
    "none": "nothing was found",
    "input_bound": "the steps wait for their data",
    "copy_bound": "the steps copy between devices",
    "host_bound": "the program's own Python, or launching tiny operations, takes the time",
    "compute_bound": "the run computes and does little else; no fault, but what remains",
    "communication_bound": "ranks spend their time talking to each other",
    "checkpoint_heavy": "saving takes too much of the time",
    "evaluation_heavy": "evaluating takes too much of the time",
    "compile_heavy": "the model is compiled again and again",
    "logging_heavy": "logging and printing take too much of the time",
    "gc_pauses": "Python's garbage collector stops the steps",
    "periodic_stall": "every so many steps or seconds one takes far longer",
    "straggler": "one rank, or one pipeline stage, is late and the others wait for it",
    "cpu_throttled": "the control group's processor quota ran out",
    "gpu_throttled": "a GPU is slowed down by heat or power",
    "swapping": "memory went to swap while something waited for it",
    "padding_waste": "most places of the batches hold padding",
    "gpu_idle": "a GPU computes less than half of the time",
    "memory_leak": "memory grows and does not stop",
    "fragmentation": "the GPU's memory lies in split blocks, and is short",
    "disk_full": "the run fills its disk within two hours",
    "oom": "memory ran out",
    "divergence": "the loss rose for good",
    "loss_spike": "the loss rose at once",
    "plateau": "the loss has not fallen at all",
    "non_finite": "loss or gradients are NaN or infinite",
    "exploding_gradients": "the norm of the gradients left its usual range again and again, or broke the run",
    "vanishing_gradients": "a layer, or all, get next to no gradient",
    "dead_gradients": "gradients are exactly zero",
    "learning_rate": "the schedule leaves no learning rate, jumps or swings",
    "overfitting": "the loss on held-out data rises while the training loss falls",
    "dead_worker": "a worker process of a data loader died",
    "hang": "the training stood still",
    "crash": "the run ended before its time",
    **grpo.KINDS,
}
