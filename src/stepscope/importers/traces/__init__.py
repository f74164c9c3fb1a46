"""Read profiler and pipeline traces."""
