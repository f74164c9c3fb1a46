"""Analyse profiler traces: kernels, idle time, communication, critical path."""
