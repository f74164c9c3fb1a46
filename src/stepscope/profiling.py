"""Memory, timing and throughput inside a training loop, under compatible names."""

from __future__ import annotations

from stepscope.trackers.profiling.comprehensive_profiler import ComprehensiveProfiler
from stepscope.trackers.profiling.gpu_memory_profiler import GPUMemoryProfiler, LeakReport
from stepscope.trackers.profiling.throughput_tracker import ThroughputTracker
from stepscope.trackers.profiling.training_timer import TrainingTimer

__all__ = ["ComprehensiveProfiler", "GPUMemoryProfiler", "LeakReport", "ThroughputTracker", "TrainingTimer"]
