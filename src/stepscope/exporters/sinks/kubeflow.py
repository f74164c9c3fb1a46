"""Kubeflow: the progress, remaining time and latest metrics of a TrainJob, as `kubectl get trainjob` shows them.

`kubeflow://` alone: Kubeflow Trainer tells each container of a TrainJob by environment where to report, if its feature
gate `TrainJobStatus` is on. The file with the token changes while the job runs, so it is read for each report.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from stepscope.core.errors import UsageError
from stepscope.core.secrets import from_file
from stepscope.core.strict_json import word
from stepscope.exporters.sinks.http import HttpClient
from stepscope.exporters.sinks.sink import CALL_SECONDS, Sink, SinkDeniesError, SinkDownError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.sink import RunFacts, RunNews

URL, CA_CERT, TOKEN = (
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
)
"""Variables that Kubeflow sets: an address, and the paths of two files."""
PAUSE = 5.0
"""Seconds between two reports: Kubeflow limits their rate for all jobs of a service account together."""
MOST_METRICS = 256
MOST_TEXT = 64
"""Characters of a metric's name: Kubeflow refuses the whole report if one is longer."""
MOST_BODY = 60_000
"""Bytes of a report; Kubeflow takes 65536."""
MOST_SECONDS = 2**31 - 1


class KubeflowSink(Sink):
    """The status of the TrainJob in which this process runs."""

    kind: ClassVar[str] = "kubeflow"
    takes_rows: ClassVar[bool] = False
    takes_all_nodes: ClassVar[bool] = False
    report_every: ClassVar[float] = PAUSE

    def __init__(
        self,
        address: SinkAddress,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        seconds: float = CALL_SECONDS,
    ) -> None:
        """Connect to nothing yet; `clock` counts seconds, a report takes at most `seconds`."""
        super().__init__(address, environ)
        target = address.target(environ)
        address.options(environ, ())
        if target.netloc or target.path.strip("/"):
            cause = "Kubeflow tells by environment where to report"
            raise UsageError(f"use sink {address.name}", cause, "write kubeflow:// and nothing behind it")
        self._clock, self._seconds = clock, seconds
        self._last = -math.inf
        self._failed = False
        self._secret = ""
        self._client: HttpClient | None = None

    def probe(self) -> str:
        """Send a report without a status, which Kubeflow checks and does not store."""
        self._post({})
        return f"Kubeflow Trainer, TrainJob {_job(self.environ[URL])}"

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002 - nothing to create
        """Check that this process runs in a TrainJob; the TrainJob itself exists already."""
        self._connected()
        return {"link": ""}

    def report(self, news: RunNews) -> None:
        """Report, unless the last report was made just now. The last one of a run is always made."""
        wait = self._last + PAUSE - self._clock()
        if wait > 0 and not news.is_over:
            if self._failed:
                raise SinkDownError("the last report failed; the next one waits", wait)
            return
        self._post({"trainerStatus": status_of(news, self.address.prefix, time.time())})

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _post(self, document: dict[str, Any]) -> None:
        client = self._connected()
        self._last, self._failed = self._clock(), True
        client.post("", json.dumps(document).encode(), {"Content-Type": "application/json"}, self._seconds)
        self._failed = False

    def _connected(self) -> HttpClient:
        """Return a client that presents the token as it is in the file now."""
        missing = [name for name in (URL, TOKEN) if not self.environ.get(name)]
        if missing:
            raise SinkDeniesError(
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set: this is no TrainJob of"
                " Kubeflow Trainer, or its feature gate TrainJobStatus is off"
            )
        target = urlsplit(self.environ[URL])
        if target.scheme != "https":
            raise SinkDeniesError(f"{URL} is no https:// address: the token would travel in the clear")
        token = self._token()
        if self._client is None or token != self._secret:
            self.close()
            header = {"Authorization": f"Bearer {token}"}
            self._client = HttpClient(target, self.environ, header, self.environ.get(CA_CERT, ""))
            self._secret = token
        return self._client

    def _token(self) -> str:
        try:
            token = from_file(self.environ[TOKEN], "read the token")
        except UsageError as error:
            raise SinkDeniesError(f"{error.cause} ({TOKEN})") from None
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise SinkDeniesError(f"the file {self.environ[TOKEN]} holds no token ({TOKEN})")
        return token


def status_of(news: RunNews, prefix: str, now: float) -> dict[str, Any]:
    """Return the status of a TrainJob at a time, in seconds since 1970, as Kubeflow stores it."""
    percent, remaining = news.progress, news.remaining
    if news.state == "finished":
        percent, remaining = 1.0, 0.0
    elif news.is_over:
        remaining = None
    moment = now if news.ended is None else news.ended
    found: dict[str, Any] = {
        "lastUpdatedTime": datetime.fromtimestamp(int(moment), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    }
    if percent is not None and math.isfinite(percent):
        found["progressPercentage"] = min(max(int(percent * 100 + 1e-6), 0), 100)
    if remaining is not None and math.isfinite(remaining):
        found["estimatedRemainingSeconds"] = min(max(math.ceil(remaining), 0), MOST_SECONDS)
    found["metrics"] = metrics_of(news.latest, prefix)
    return found


def metrics_of(latest: Mapping[str, float], prefix: str) -> list[dict[str, str]]:
    """Return the first metrics that fit in a report, with their values as text."""
    found: list[dict[str, str]] = []
    size = 0
    for name, value in latest.items():
        metric = {"name": _short(prefix + name), "value": repr(float(value)) if math.isfinite(value) else word(value)}
        size += len(json.dumps(metric)) + 2
        if size > MOST_BODY or len(found) == MOST_METRICS:
            break
        found.append(metric)
    return found


def _short(name: str) -> str:
    """Return a name of at most `MOST_TEXT` characters; one that is cut ends in digits that tell it from others."""
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return name if len(name) <= MOST_TEXT else f"{name[: MOST_TEXT - 9]}~{digest}"


def _job(url: str) -> str:
    """Return namespace and name of the job that an address of Kubeflow is about."""
    parts = urlsplit(url).path.split("/")
    wanted = [parts[place + 1] for place, part in enumerate(parts[:-1]) if part in {"namespaces", "trainjobs"}]
    return "/".join(wanted)[:200]
