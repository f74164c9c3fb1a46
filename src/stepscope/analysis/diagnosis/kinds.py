"""Every kind of finding and its meaning. The names are stable."""

from __future__ import annotations

from stepscope.analysis.diagnosis import grpo

KINDS: dict[str, str] = {
    "none": "no problem found",
    "input_bound": "steps wait for data",
    "copy_bound": "copies between devices take the time",
    "host_bound": "the program's own Python code, or launching tiny operations, takes the time",
    "compute_bound": "the run is limited by compute; not a problem",
    "communication_bound": "communication between ranks takes the time",
    "checkpoint_heavy": "checkpoints take too much of the time",
    "evaluation_heavy": "evaluation takes too much of the time",
    "compile_heavy": "the model is recompiled again and again",
    "logging_heavy": "logging and printing take too much of the time",
    "gc_pauses": "Python's garbage collector interrupts the steps",
    "periodic_stall": "at regular intervals a step takes far longer than usual",
    "straggler": "one rank or pipeline stage is slow, and the others wait for it",
    "cpu_throttled": "the container's CPU quota ran out",
    "gpu_throttled": "heat or power limits slow down a GPU",
    "swapping": "memory was swapped to disk while processes waited for it",
    "padding_waste": "batches consist mostly of padding",
    "gpu_idle": "a GPU is idle more than half of the time",
    "memory_leak": "memory keeps growing",
    "fragmentation": "GPU memory is fragmented and nearly full",
    "disk_full": "the run will fill its disk within two hours",
    "oom": "memory ran out",
    "divergence": "the loss rose and did not recover",
    "loss_spike": "the loss jumped",
    "plateau": "the loss has not fallen at all",
    "non_finite": "loss or gradients are NaN or infinite",
    "exploding_gradients": "the gradient norm left its usual range repeatedly, or broke the run",
    "vanishing_gradients": "one layer, or all layers, get almost no gradient",
    "dead_gradients": "gradients are exactly zero",
    "learning_rate": "the learning rate decays to nothing, jumps or oscillates",
    "overfitting": "the validation loss rises while the training loss falls",
    "dead_worker": "a data loader's worker process died",
    "hang": "the training stood still",
    "crash": "the run ended too early",
    **grpo.KINDS,
}
