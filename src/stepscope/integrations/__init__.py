"""What frameworks call: one file per framework and per noun that it needs."""

from __future__ import annotations

from stepscope.core.moved import forward

forward(
    __name__,
    {
        "activations": "numerics.activations",
        "flops": "numerics.flops",
        "gradients": "numerics.gradients",
        "oom": "numerics.oom",
        "torch_memory": "numerics.memory",
        "torch_profile": "profiler.profile",
    },
)
