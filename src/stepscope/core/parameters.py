"""The names of a model's parameters, without the prefixes that wrappers add."""

from __future__ import annotations

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module.")
"""Parts that DDP, torch.compile, FSDP, activation checkpointing, and DeepSpeed or Fabric add to a name."""


def plain_name(name: str) -> str:
    """Return a name as the model's author gave it."""
    while name.startswith("module."):
        name = name.removeprefix("module.")
    for wrapper in WRAPPERS[1:]:
        name = name.replace(wrapper, "")
    return name


def layer_of(name: str) -> str:
    """Return the layer of a parameter: its name without the last part."""
    return name.rpartition(".")[0] or name
