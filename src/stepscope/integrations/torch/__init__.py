"""Hooks that time the steps, phases, data and devices of a PyTorch training."""
