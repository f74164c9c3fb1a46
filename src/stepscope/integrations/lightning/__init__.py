"""Callbacks, logger and profiler for Lightning."""
