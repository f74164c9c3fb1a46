"""Stand-ins for torch with a GPU: an allocator with counters, and events on a clock of the device's own."""

from __future__ import annotations

from types import SimpleNamespace

GIB = 2**30


class Gpu:
    """A device whose memory and time the test sets; counts whoever waits for it."""

    def __init__(self, count=1):
        self.allocated = self.reserved = self.peak = 0.0
        self.time = 0.0
        self.waits = 0
        self.reads = 0
        self.queue = []
        self.capturing = self.broken = False
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing
                self.at = None

            def record(self):
                if gpu.broken:
                    raise RuntimeError("CUDA error: unspecified launch failure")
                self.at = None
                gpu.queue.append(self)

            def query(self):
                return self.at is not None

            def synchronize(self):
                gpu.waits += 1
                gpu.run()

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        cuda = SimpleNamespace(
            Event=Event,
            is_available=lambda: True,
            is_initialized=lambda: True,
            device_count=lambda: count,
            current_device=lambda: 0,
            is_current_stream_capturing=lambda: gpu.capturing,
            synchronize=self.synchronize,
            memory_stats=self.memory_stats,
            get_device_properties=lambda number: SimpleNamespace(total_memory=80 * GIB),
        )
        self.modules = {"torch": SimpleNamespace(cuda=cuda)}

    def work(self, seconds):
        """Queue some work."""
        self.queue.append(seconds)

    def run(self):
        """Do what is queued."""
        for item in self.queue:
            if isinstance(item, float):
                self.time += item
            else:
                item.at = self.time
        self.queue.clear()

    def synchronize(self, device):
        self.waits += 1
        self.run()

    def memory_stats(self, number):
        self.reads += 1
        if self.broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        self.peak = max(self.peak, self.allocated)
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.reserved,
        }
