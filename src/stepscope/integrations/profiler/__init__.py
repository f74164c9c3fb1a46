"""Record profiler traces of a few training steps."""
