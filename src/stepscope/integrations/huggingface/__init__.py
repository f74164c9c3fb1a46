"""Callbacks and trackers for Transformers and Accelerate."""
