"""The in-process hot path: the ring's writer, log, step and phase."""
