"""The system monitor of a training monitor: it starts and stops with the training, and yields each new sample once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.recorder.complaints import Complaints


class SystemAttachment:
    """Holds a SystemMonitor, or an object of the user's with some of its methods; nothing here raises."""

    def __init__(self, notices: Complaints) -> None:
        """Hold nothing; problems are reported to `notices`."""
        self._notices = notices
        self.part: Any = None
        self._seen: object = None
        self._running = False

    def put(self, part: Any, *, start: bool) -> None:
        """Hold a part in place of the one before, and start it if the training is being monitored."""
        self.stop()
        self.part, self._seen = part, None
        if start:
            self.start()

    def start(self) -> None:
        """Start the part, unless that was done or it samples already."""
        if not self._running and not getattr(self.part, "is_monitoring", False):
            self._running = self._call("start_monitoring")[0]

    def stop(self) -> None:
        """Stop the part, if it was started here."""
        if self._running:
            self._running = False
            self._call("stop_monitoring")

    def fresh(self) -> dict[str, float]:
        """Return the figures of the newest sample, once; {} until there is another."""
        result = None if self.part is None else self._call("get_current_metrics")[1]
        sample = dict(result) if isinstance(result, dict) else {}
        time = sample.pop("timestamp", None)
        if not sample or (time is not None and time == self._seen):
            return {}
        self._seen = time
        return sample

    def _call(self, method: str) -> tuple[bool, Any]:
        """Call a method that the part may have; return whether that worked, and the result."""
        call = getattr(self.part, method, None)
        if call is not None:
            with self._notices.shield(f"system {method}", f"call system_monitor.{method}()"):
                return True, call()
        return False, None
