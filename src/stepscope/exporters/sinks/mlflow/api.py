"""MLflow's REST interface: requests with our credentials, and what its answers mean."""

from __future__ import annotations

import base64
import configparser
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from stepscope.core.web_client import wait_asked
from stepscope.exporters.sinks.http import HttpClient, is_page, judge
from stepscope.exporters.sinks.sink import (
    CALL_SECONDS,
    SinkDeniesError,
    SinkDownError,
    SinkRefusesError,
    SinkSlowError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from urllib.parse import SplitResult

    from stepscope.exporters.sinks.http import Answer

ROOT = "/api/2.0/mlflow/"
EXISTS, MISSING = "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"
DOWN = frozenset(("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"))
"""Errors after which the same request may succeed."""
MARGIN = 2.0
"""Seconds of a call that are left for our own work."""
MAX_ANSWER = 64 << 20
"""Bytes of an answer: a run comes with its parameters and the last value of each metric."""
_JSON = {"Content-Type": "application/json"}


class MlflowApi:
    """One MLflow server. `begin` starts a call of the sink; its requests share one deadline."""

    def __init__(self, target: SplitResult, environ: Mapping[str, str]) -> None:
        """Read the credentials as they are now; connect to nothing yet."""
        user, password, token = _credentials(target, environ)
        self.place = f"{target.hostname}:{target.port}" if target.port else f"{target.hostname}"
        self._secrets = [text for text in (password, token, unquote(target.password or "")) if len(text) > 2]
        headers = {}
        if user and password:
            headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        elif token:
            headers["Authorization"] = f"Bearer {token}"
        insecure = environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").strip().lower() in {"true", "1"}
        certificates = environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH", "")
        self._client = HttpClient(target, environ, headers, certificates, verify=not insecure, max_answer=MAX_ANSWER)
        self._until = 0.0

    def begin(self, seconds: float = CALL_SECONDS - MARGIN) -> None:
        """Give the next requests this long, together."""
        self._until = time.monotonic() + seconds

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """GET an object. RESOURCE_DOES_NOT_EXIST is returned as {}."""
        return self._call("GET", f"{path}?{urlencode(query, quote_via=quote)}", None, (MISSING,))

    def post(self, path: str, given: Mapping[str, Any], taken: Collection[str] = ()) -> dict[str, Any]:
        """POST an object; an error whose code is in `taken` is returned as {}."""
        return self._call("POST", path, json.dumps(given).encode(), taken)

    def log(self, body: bytes) -> None:
        """POST to `runs/log-batch`, and be sure that MLflow has taken it: it answers {}."""
        if self._call("POST", "runs/log-batch", body, ()):
            raise SinkDownError("a request was answered with something that MLflow does not answer")

    def _call(self, method: str, path: str, body: bytes | None, taken: Collection[str]) -> dict[str, Any]:
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise SinkSlowError("no answer in time")
        answer = self._client.request(method, ROOT + path, body, _JSON if body else {}, seconds, judged=False)
        found = _object(answer)
        code = str((found or {}).get("error_code", ""))
        if 200 <= answer.status < 300 and found is not None and not code:
            return found
        if code and code in taken:
            return {}
        raise self._error(answer, code, found)

    def _error(self, answer: Answer, code: str, found: dict[str, Any] | None) -> Exception:
        if 200 <= answer.status < 300 and not code:
            what = "a web page" if is_page(answer) else "something"
            return SinkDownError(f"a request was answered with {what} that is not from MLflow")
        said = self.scrubbed(str((found or {}).get("message", "")) or _short(answer))
        why = f"{code or f'the server answered {answer.status}'}" + (f": {said}" if said else "")
        if code in DOWN:
            return SinkDownError(why, wait_asked(answer.headers.get("Retry-After")))
        if code == MISSING:
            return SinkDeniesError(why)
        if answer.status in {401, 403}:
            what = f"the server refuses our user, password or token ({answer.status})"
            return SinkDeniesError(f"{what}: {said}" if said else what)
        if code in {"INVALID_PARAMETER_VALUE", EXISTS}:
            return SinkRefusesError(why)
        try:
            judge(answer, self.scrubbed)
        except (SinkDownError, SinkDeniesError, SinkRefusesError) as error:
            return error
        return SinkDownError(why)  # an error inside an answer of 200

    def scrubbed(self, text: str) -> str:
        """Return a text of the server for people: one line, without our credentials."""
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        return self._client.scrubbed(text)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _object(answer: Answer) -> dict[str, Any] | None:
    """Return the JSON object in an answer; None if it is something else."""
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _short(answer: Answer) -> str:
    return "" if is_page(answer) else answer.body[:1000].decode("utf-8", "replace").strip()


def _credentials(target: SplitResult, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return user, password and token as MLflow's client finds them; those of the address go first, netrc's last."""
    if target.username:
        return "", "", ""
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    path = os.path.join(environ.get("HOME") or str(Path.home()), ".mlflow", "credentials")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
    except (OSError, ValueError, configparser.Error):
        raise SinkDeniesError(f"the credentials in {path} cannot be read") from None
    user, password = (environ.get(name) or str(parser.get("mlflow", name, fallback="")) for name in names)
    token = environ.get("MLFLOW_TRACKING_TOKEN", "").strip()
    if not token.isascii() or not token.isprintable():
        raise SinkDeniesError("MLFLOW_TRACKING_TOKEN holds a character that no token has")
    return user, password, token
