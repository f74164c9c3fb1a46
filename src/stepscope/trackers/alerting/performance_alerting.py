"""PerformanceAlerting: compare a sample with a baseline, and send alerts by mail."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stepscope.alerts.rules.template import fill
from stepscope.core.errors import in_words
from stepscope.core.gpu_memory import by_gpu, index_of
from stepscope.core.kinds import describe, parse_float
from stepscope.core.names import UNSAFE
from stepscope.core.redact import redact_text
from stepscope.core.remedies import remedy
from stepscope.core.thresholds import BY_NAME
from stepscope.core.walls import attempt
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.work_queue import Worklist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    Alert = dict[str, Any]
    Send = Callable[[str, str], str]

THRESHOLDS = {"loss_increase": 0.1, "gpu_memory": 0.9, "cpu_usage": 0.95, "training_speed": 0.5}
"""Fractions: rise of the loss, GPU memory in use, CPU usage, loss of speed."""
SUBJECT = "Stepscope Alert: {type}"
BODY = """Stepscope Training Alert

Type: {type}
Message: {message}
Severity: {severity}
Time: {time}
What to do: {remedy}
"""
KINDS = {
    "loss_increase": "divergence",
    "loss_not_finite": "non_finite",
    "gpu_memory": "oom",
    "cpu_usage": "cpu_usage",
    "training_speed": "training_speed",
}
"""The finding whose remedy an alert repeats."""
COOLDOWN = 3600.0
"""Seconds in which an alert of one type is not sent again."""
SPEEDS = ("training_speed", "steps_per_second", "samples_per_second", "tokens_per_second")
DURATIONS = ("step_seconds", "batch_time")
MOST_WAITING = 100
KEYS = ("from", "to", "smtp_server", "smtp_port", "username", "password")


class PerformanceAlerting:
    """Check samples against thresholds and a baseline, and send alerts by mail with STARTTLS and login.

    Sending happens in a thread: a mail server that is down or hangs never keeps the caller waiting. An alert that could
    not be sent is tried again with the next one of its type. docs/reference/alerts.md has rules that survive it.
    """

    def __init__(
        self,
        email_config: Mapping[str, Any] | None = None,
        *,
        subject: str = SUBJECT,
        body: str = BODY,
        cooldown_seconds: float = COOLDOWN,
        send: Send | None = None,
        now: Callable[[], float] = time.time,
        stream: TextIO | None = None,
    ) -> None:
        """Prepare; nothing connects. Without an `email_config` that has all of KEYS nothing is sent.

        Subject and body are templates with `{type}`, `{message}`, `{severity}`, `{time}` and `{remedy}`. An alert of
        one type is sent once in `cooldown_seconds`. `send` takes subject and text, and returns why they could not be
        sent, or an empty text.
        """
        self.email_config: dict[str, Any] = dict(email_config or {})
        self.alert_thresholds: dict[str, float] = dict(THRESHOLDS)
        """By type; may be changed."""
        self.subject, self.body, self.cooldown_seconds = subject, body, float(cooldown_seconds)
        self.notices = Complaints(stream)
        self._send, self._now = send or self._mail, now
        self._sent: dict[str, float] = {}
        self._lock = threading.Lock()
        self._mails = Worklist(self._try, name="stepscope-mail", most=MOST_WAITING)
        self.sent, self.failed = 0, 0

    def __repr__(self) -> str:
        return f"<PerformanceAlerting to {self.email_config.get('to', 'nobody')}>"

    def check_alerts(
        self, current_metrics: Mapping[str, Any] | None, baseline_metrics: Mapping[str, Any] | None
    ) -> list[Alert]:
        """Return the alerts, each with `type`, `message` and `severity`; unknown values are not checked.

        The metrics are `loss`, `gpu_memory` (by GPU), `cpu_percent`, and a speed such as `training_speed`; the baseline
        has the same, from a time when the training was healthy.
        """
        current = current_metrics if isinstance(current_metrics, Mapping) else {}
        normal = baseline_metrics if isinstance(baseline_metrics, Mapping) else {}
        return [*self._loss(current, normal), *self._gpus(current), *self._cpu(current), *self._speed(current, normal)]

    def _loss(self, current: Mapping[str, Any], baseline: Mapping[str, Any]) -> Iterator[Alert]:
        loss, normal = _number(current.get("loss")), _number(baseline.get("loss"))
        if loss is not None and not math.isfinite(loss):
            yield _alert("loss_not_finite", f"Training loss is {loss}", "critical")
        elif loss is not None and normal and math.isfinite(normal):  # a share of 0 is undefined
            rise = (loss - normal) / abs(normal)
            if rise > self._threshold("loss_increase"):
                yield _alert("loss_increase", f"Training loss increased by {rise * 100:.1f}%")

    def _gpus(self, current: Mapping[str, Any]) -> Iterator[Alert]:
        memory = current.get("gpu_memory")
        names = {index_of(key): key for key in memory} if isinstance(memory, Mapping) else {}
        for index, figures in by_gpu(memory).items():
            ratio = figures._replace(total=figures.total or _capacity(index)).used_ratio
            if ratio is not None and ratio > self._threshold("gpu_memory"):
                yield _alert("gpu_memory", f"GPU {names.get(index, index)} memory usage is {ratio * 100:.1f}%")

    def _cpu(self, current: Mapping[str, Any]) -> Iterator[Alert]:
        percent = _number(current.get("cpu_percent"))
        if percent is not None and percent > self._threshold("cpu_usage") * 100:
            yield _alert("cpu_usage", f"CPU usage is {percent:.1f}%")

    def _speed(self, current: Mapping[str, Any], baseline: Mapping[str, Any]) -> Iterator[Alert]:
        """Compare the first speed, or the first step duration, that both samples have."""
        for name in (*SPEEDS, *DURATIONS):
            now, normal = _number(current.get(name)), _number(baseline.get(name))
            if now is None or normal is None or not 0 <= now < math.inf or not 0 < normal < math.inf:
                continue
            if name in DURATIONS and now == 0:
                continue
            loss = 1 - (normal / now if name in DURATIONS else now / normal)
            if loss > self._threshold("training_speed"):
                yield _alert("training_speed", f"Training speed decreased by {loss * 100:.1f}%")
            return

    def _threshold(self, name: str) -> float:
        """Return a threshold, parsed like the setting of that name; an invalid one is reported and replaced."""
        value = self.alert_thresholds.get(name)
        if value is None:
            return math.inf
        try:
            return parse_float(BY_NAME[name].kind.parse(value))
        except ValueError as error:
            default = THRESHOLDS[name]
            cause = f"it is {describe(value)}, {error}"
            self.notices.say(name, f"cannot use the alert threshold '{name}': {cause}; {default:g} is used")
            return default

    def send_alert(self, alert: Mapping[str, Any]) -> bool:
        """Queue an alert and return at once; False if one of its type was sent within the cooldown."""
        kind = str(alert.get("type", "alert"))
        now = self._now()
        with self._lock:
            last = self._sent.get(kind)
            if last is not None and 0 <= now - last < self.cooldown_seconds:
                return False
            self._sent[kind] = now
        self._mails.add({"time": datetime.fromtimestamp(now).astimezone(), **alert})
        return True

    def flush(self, seconds: float = 10.0) -> bool:
        """Wait until every mail was sent or has failed, at most so many seconds; return whether that is so."""
        return self._mails.flush(seconds)

    def _try(self, alert: Alert) -> None:
        """Send an alert; in the thread."""
        why = attempt(lambda: self._deliver(alert), in_words)  # a user's sender may raise anything
        with self._lock:
            self.sent, self.failed = self.sent + (not why), self.failed + bool(why)
            if why:
                self._sent.pop(str(alert.get("type", "alert")), None)  # the next one is tried
                self.notices.say(why, f"cannot send alert {_line(alert.get('type', ''))}: {self._safe(why)}")

    def _deliver(self, alert: Alert) -> str:
        kind = str(alert.get("type", "alert"))
        defaults = {"severity": "warning", "message": "", "remedy": remedy(KINDS.get(kind, kind)) or "inspect the run"}
        shown = {key: _line(value) for key, value in {**defaults, **alert}.items()}
        return self._send(_line(fill(self.subject, shown)), fill(self.body, shown))

    def _mail(self, subject: str, body: str) -> str:
        """Send a mail through apprise; return why it could not be sent."""
        missing = [key for key in KEYS if not self.email_config.get(key)]
        if missing:
            return f"email_config has no {', '.join(missing)}; give it, or send="
        from stepscope.alerts.delivery.apprise_channel import tell

        return tell(mail_address(self.email_config), subject, body).why

    def _safe(self, text: str) -> str:
        password = str(self.email_config.get("password") or "")
        return redact_text(text.replace(password, "***") if password else text)


def mail_address(config: Mapping[str, Any]) -> str:
    """Return the apprise URL of a mail configuration; mail is sent with STARTTLS after a login."""
    to = config["to"]
    people = to if isinstance(to, str) else ",".join(map(str, to))
    user, password = (quote(str(config[key]), safe="") for key in ("username", "password"))
    server, port = str(config["smtp_server"]), int(config["smtp_port"])
    mode = "ssl" if port == 465 else "starttls"
    options = f"smtp={quote(server)}&mode={mode}&from={quote(str(config['from']))}&to={quote(people, safe=',')}"
    return f"mailtos://{quote(server)}:{port}?user={user}&pass={password}&{options}"


def _alert(kind: str, message: str, severity: str = "warning") -> Alert:
    return {"type": kind, "message": message, "severity": severity}


def _number(value: Any) -> float | None:
    """Return a number, also of a one-element tensor; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _capacity(index: int) -> float | None:
    """Return the memory of a GPU in bytes, if torch is loaded and knows it."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available():
            return None
        return float(torch.cuda.get_device_properties(index).total_memory)
    except (AttributeError, AssertionError, RuntimeError, TypeError):
        return None


def _line(value: object) -> str:
    """Return a text on one line, without control characters."""
    return redact_text(UNSAFE.sub(" ", str(value)[:1000]))
