"""Weights & Biases as a sink: its package runs in a process of its own."""
