"""The sinks of the configuration: where to send which metrics, how often, under which names."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from stepscope.core.errors import UsageError
from stepscope.core.kinds import DURATION
from stepscope.core.secrets import HOLE, filled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

KEYS = ("url", "name", "metrics", "prefix", "interval")
LONGEST_INTERVAL = 300.0
"""Seconds between two batches at most: well below those after which a sink that is behind raises an alert."""
OWN = "stepscope/*"
"""Metrics about Stepscope itself, which a sink gets only if it asks for them."""
SETTING = "exporters.sinks"
SCHEMES = (
    *("wandb", "mlflow+http", "mlflow+https", "mlflow+sqlite", "trackio", "otlp+http", "otlp+https"),
    *("prometheus+http", "prometheus+https", "kubeflow"),
)
"""What an address begins with; `table` has the sink of each."""
_SCHEME = re.compile(r"([a-z][a-z0-9+]*):(//|$)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True)
class SinkAddress:
    """One sink of the configuration. Its `repr` and `name` hold no secret."""

    name: str
    """Shown to people, and part of the names of its metrics."""
    scheme: str
    url: str = field(repr=False)
    """As configured: with placeholders such as ${TOKEN} or ${file:/run/secrets/token}."""
    metrics: tuple[str, ...] = ()
    """Names or patterns such as `gpu/*`; with `!` before it, what is left out. Empty: all but our own."""
    prefix: str = ""
    """Written before each name."""
    interval: float = 0.0
    """Seconds between two batches while the sink keeps up; 0 for what suits the sink."""

    @property
    def key(self) -> str:
        """Names the sink's folder in a run; stays the same while its address does, whatever its secrets are."""
        parts = urlsplit(self.url)
        place = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
        kind = self.scheme.partition("+")[0]
        return f"{kind}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"

    def target(self, environ: Mapping[str, str]) -> SplitResult:
        """Return the address without `kind+`, with its placeholders filled; UsageError if one cannot be."""
        text = filled(self.url, environ, f"use sink {self.name}")
        kind, plus, rest = text.partition("+")
        return urlsplit(rest if plus and ":" not in kind else text)

    def options(self, environ: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
        """Return the options after the `?` of the address; UsageError if one is not in `known`."""
        found = dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))
        unknown = sorted(set(found) - set(known))
        if unknown:
            cause = f"its address has the unknown option {unknown[0][:40]!r}"
            raise UsageError(f"use sink {self.name}", cause, f"known are {', '.join(known) or 'none'}")
        # Filled last: a secret may hold what would end an option, and must not end up in the message above.
        return {option: filled(value, environ, f"use sink {self.name}") for option, value in found.items()}

    @cached_property
    def _expression(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """What is sent, and what is left out of that."""
        out = [pattern.removeprefix("!") for pattern in self.metrics if pattern.startswith("!")]
        sent = [pattern for pattern in self.metrics if not pattern.startswith("!")]
        return _any_of(sent or ["*"]), _any_of(out if sent else [*out, OWN])

    def wants(self, name: str) -> bool:
        """Return whether a metric is sent here."""
        sent, out = self._expression
        return bool(sent.fullmatch(name)) and not out.fullmatch(name)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns) or r"(?!)")


def sinks_of(settings: Mapping[str, Any]) -> tuple[list[SinkAddress], list[str]]:
    """Return the valid sinks in `exporters.sinks`, and the problems with the others as sentences."""
    given = settings.get(SETTING) or ()
    problems: list[str] = []
    found: list[SinkAddress] = []
    for number, item in enumerate([given] if isinstance(given, (str, dict)) else given, 1):
        try:
            found.append(_address(item, f"use sink {number} of {SETTING}", found))
        except UsageError as error:
            problems.append(str(error))
    return found, problems


def address_of(url: str, **facts: Any) -> SinkAddress:
    """Return the sink of an address that was given on the command line; UsageError if it is none."""
    given = {key: value for key, value in facts.items() if value}
    return _address({"url": url, **given}, f"send to {shown(url)}", [])


def shown(url: str) -> str:
    """Return an address for messages: without user, password and options; only its scheme if it is malformed."""
    if not _is_sound(url):
        return f"{url.partition('://')[0][:40]}://…"
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]


def _address(item: object, what: str, others: Sequence[SinkAddress]) -> SinkAddress:
    facts: dict[str, Any] = {"url": item} if isinstance(item, str) else dict(item) if isinstance(item, dict) else {}
    url = facts.get("url")
    if not isinstance(url, str) or not url.strip():
        raise UsageError(what, "it has no address", "give one such as mlflow+http://localhost:5000")
    unknown = sorted(str(key) for key in set(facts) - set(KEYS))
    if unknown:
        raise UsageError(what, f"it has the unknown key {unknown[0][:40]!r}", f"known are {', '.join(KEYS)}")
    scheme = _scheme(url.strip(), what)
    kind = scheme.partition("+")[0]
    name = str(facts.get("name") or "")
    if name and not _NAME.fullmatch(name):
        remedy = "use at most 40 letters, digits and . _ -"
        raise UsageError(what, f"{name[:40]!r} cannot be its name", remedy)
    address = SinkAddress(
        _free(name or kind, {other.name for other in others}),
        scheme,
        url.strip(),
        _metrics(facts.get("metrics"), what),
        str(facts.get("prefix") or ""),
        _interval(facts.get("interval"), what),
    )
    if any(address.key == other.key for other in others):
        raise UsageError(what, "its address is listed twice", "keep one of them")
    return address


def _scheme(url: str, what: str) -> str:
    found = _SCHEME.match(url)
    scheme = found[1] if found else ""
    if scheme not in SCHEMES:
        cause = f"there is no sink {scheme[:40]}://" if scheme else "its address has no scheme that we know"
        raise UsageError(what, cause, f"known are {', '.join(f'{one}://' for one in SCHEMES)}")
    if not _is_sound(url):
        remedy = "correct it; in a password, write characters such as @ # / as %40 %23 %2F"
        raise UsageError(what, "its address is malformed", remedy)
    if urlsplit(HOLE.sub("1", url)).port == 0:
        raise UsageError(what, "its address has the port 0", "name the port that the server listens on")
    return scheme


def _is_sound(url: str) -> bool:
    """Return whether an address can be what its user meant: a password with / or # would end the host too early."""
    try:
        parts = urlsplit(HOLE.sub("1", url))
        _ = parts.port  # raises for one that is no number
    except ValueError:  # its text would quote the address, with the password
        return False
    is_web = parts.scheme.endswith(("http", "https"))
    return not (is_web and "@" in parts.path + parts.fragment)


def _free(name: str, taken: Collection[str]) -> str:
    numbered = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
    return next(one for one in numbered if one not in taken)


def _metrics(given: object, what: str) -> tuple[str, ...]:
    if given is None:
        return ()
    texts = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
        raise UsageError(what, "its metrics are no list of names", "write them as [loss, gpu/*]")
    repeated = [name for name, count in Counter(texts).items() if count > 1]
    if len(texts) > 1000 or repeated:
        cause = f"it lists {repeated[0][:40]!r} twice" if repeated else "it lists more than 1000 metrics"
        raise UsageError(what, cause, "use patterns such as gpu/*")
    return tuple(texts)


def _interval(given: object, what: str) -> float:
    if given is None:
        return 0.0
    try:
        seconds: Any = DURATION.parse(given)
    except ValueError as error:
        raise UsageError(what, f"its interval is {given!r}, {error}", "write it as 2 s or 1 min") from None
    if not 0.1 <= seconds <= LONGEST_INTERVAL:
        raise UsageError(what, f"its interval is {given!r}", "choose 0.1 s to 5 min")
    return float(seconds)
