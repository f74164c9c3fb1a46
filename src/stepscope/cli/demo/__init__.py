"""The training that `stepscope demo` runs, and its display."""
