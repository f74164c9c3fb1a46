"""Memory, timing and throughput inside a training loop, under the names that the documents use."""

from __future__ import annotations

from stepscope.trackers.comprehensive_profiler import ComprehensiveProfiler
from stepscope.trackers.gpu_memory_profiler import GPUMemoryProfiler, LeakReport
from stepscope.trackers.throughput_tracker import ThroughputTracker
from stepscope.trackers.training_timer import TrainingTimer

__all__ = ["ComprehensiveProfiler", "GPUMemoryProfiler", "LeakReport", "ThroughputTracker", "TrainingTimer"]
