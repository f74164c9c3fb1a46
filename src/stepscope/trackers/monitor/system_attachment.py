"""The system monitor of a training monitor: starts and stops with it, and hands over each new sample once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.recorder.complaints import Complaints

TIME = "timestamp"


class SystemAttachment:
    """Holds a SystemMonitor, or whatever the user has that has some of its methods; nothing it does raises."""

    def __init__(self, notices: Complaints) -> None:
        """Hold nothing; `notices` tells people what goes wrong."""
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
            self._running = self._call("start_monitoring")

    def stop(self) -> None:
        """Stop the part, if it was started here."""
        if self._running:
            self._running = False
            self._call("stop_monitoring")

    def fresh(self) -> dict[str, float]:
        """Return the figures of the newest sample, once; {} until there is another."""
        answer: list[Any] = []
        if self.part is None or not self._call("get_current_metrics", answer) or not isinstance(answer[0], dict):
            return {}
        sample = dict(answer[0])
        moment = sample.pop(TIME, None)
        if not sample or (moment is not None and moment == self._seen):
            return {}
        self._seen = moment
        return sample

    def _call(self, method: str, answer: list[Any] | None = None) -> bool:
        call = getattr(self.part, method, None)
        if call is None:
            return False
        with self._notices.shield(f"system {method}", f"call system_monitor.{method}()") as shield:
            result = call()
            if answer is not None:
                answer.append(result)
        return not shield.failed
