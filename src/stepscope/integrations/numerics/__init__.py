"""Measure gradients, activations, memory and FLOPs of a PyTorch model."""
