"""Stand-ins for torch's device module and for a JAX array: they count every call that would wait for the device."""

from __future__ import annotations

from types import SimpleNamespace


class Gpu:
    """A device with a queue: work is done when the test says so."""

    def __init__(self):
        self.waits = []
        self.queue = []
        self.capturing = False
        self.refuses = False
        self.event_error = None
        self.pinned = []
        gpu = self

        class Event:
            def __init__(self):
                self.done = True

            def record(self):
                self.done = False
                gpu.queue.append(lambda: setattr(self, "done", True))

            def query(self):
                if gpu.event_error is not None:
                    raise gpu.event_error
                return self.done

            def synchronize(self):
                gpu.waits.append("synchronize")

        module = SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: gpu.capturing)
        self.torch = SimpleNamespace(cuda=module, float64="float64", empty=self.empty)

    def empty(self, slots, dtype, pin_memory):
        self.pinned.append((slots, dtype, pin_memory))
        return [Slot(self) for _ in range(slots)]

    def run(self, most=10**9):
        """Do the queued work, or the first of it."""
        for _ in range(min(most, len(self.queue))):
            self.queue.pop(0)()

    def tensor(self, value, **more):
        return Tensor(self, [value], **more)


class Slot:
    """One element of pinned memory."""

    def __init__(self, gpu):
        self.gpu, self.value = gpu, -1.0

    def copy_(self, source, non_blocking=False):
        if self.gpu.refuses:
            raise TypeError("this device has no float64")
        if not non_blocking:
            self.gpu.waits.append("copy_")
        cell, at = source.cell, len(self.gpu.queue)
        # The copy is behind the work queued so far, and ahead of whatever is queued after it.
        snapshot = cell[0] if at == 0 else None
        self.gpu.queue.append(lambda: setattr(self, "value", cell[0] if snapshot is None else snapshot))

    def __float__(self):
        return float(self.value)


class Tensor:
    """A scalar on the device; reading it here would be a wait."""

    __torch_function__ = None

    def __init__(self, gpu, cell, count=1, kind="cuda"):
        self.gpu, self.cell, self.count = gpu, cell, count
        self.device = SimpleNamespace(type=kind)

    def numel(self):
        return self.count

    def detach(self):
        return self

    def reshape(self, _):
        return self

    def add_(self, amount):
        """Change the value in place, behind the work queued so far."""
        self.gpu.queue.append(lambda: self.cell.__setitem__(0, self.cell[0] + amount))

    def _wait(self, *_):
        self.gpu.waits.append("item")
        return self.cell[0]

    item = cpu = tolist = numpy = __float__ = __int__ = __index__ = __bool__ = _wait


class JaxArray:
    """An immutable array that is computed when the test says so."""

    def __init__(self, value, size=1, ndim=0):
        self.value, self.size, self.ndim = value, size, ndim
        self.ready, self.asked, self.error = False, 0, None

    def copy_to_host_async(self):
        self.asked += 1

    def is_ready(self):
        if self.error is not None:
            raise self.error
        return self.ready

    def item(self):
        return self.value

    def __float__(self):
        assert self.ready, "read before it was ready: that waits for the device"
        return float(self.value)
