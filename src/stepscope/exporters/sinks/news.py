"""What sinks get to know about a run, read from its folder: identity, configuration, state, alerts, verdict."""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stepscope.analysis.series.forecast import total_steps
from stepscope.core.events import ours
from stepscope.exporters.sinks.sink import AlertChange, RunFacts, RunNews
from stepscope.store.events import read_events
from stepscope.store.meta import read_meta
from stepscope.store.states import overall, read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.store.layout import RunFolder
    from stepscope.store.states import NodeState, RankState

SETTLE = 3.0
"""Seconds after the last heartbeat of a node without a running rank, in which its last events may be written."""
FRESH = 1.0
"""Seconds for which the states of the nodes are not read again."""
MOST_ALERTS = 1000
"""Changes of alerts that are reported, and remembered."""


class NewsDesk:
    """Reads what is new about one run, for the sinks of one of its nodes."""

    def __init__(
        self,
        folder: RunFolder,
        node: str,
        page: str = "",
        verdict: Callable[[], str] = str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: the run.
            node: the node whose rows are sent.
            page: address of the server of the page; empty without one.
            verdict: makes the diagnosis of a run that has ended; called once.
            clock: seconds since 1970.
        """
        self._folder, self._node, self._page, self._verdict, self._clock = folder, node, page, verdict, clock
        self._nodes: list[NodeState] = []
        self._read_at = float("-inf")
        self._known_verdict: str | None = None
        self._events: list[AlertChange] = []
        self._events_version: tuple[Any, ...] = ()

    def facts(self) -> RunFacts:
        """Return what does not change about the run; StepscopeError if its run.json cannot be read."""
        meta = read_meta(self._folder)
        labels, git = meta["labels"], meta.get("git")
        config = meta.get("config")
        place = f"{self._folder.path.parent.name}/{self._folder.path.name}"  # as the page's server names it
        return RunFacts(
            id=meta["id"],
            project=meta.get("project") or "",
            name=meta.get("name") or meta["id"],
            created=(meta.get("created") or 0) / 1e6,
            path=str(self._folder.path),
            config=config if isinstance(config, dict) else {},
            tags=tuple(labels["tags"]),
            notes=labels["notes"],
            group=labels["group"],
            host=str(meta.get("host") or ""),
            commit=str((git.get("commit") if isinstance(git, dict) else None) or ""),
            page=f"{self._page.rstrip('/')}/#/run/{quote(place, safe='')}" if self._page else "",
            node=self._node,
            is_first=self.is_first(),
        )

    def is_first(self) -> bool:
        """Return whether rank 0 of the last attempt is on this node; True if no node says."""
        holders = [node.node for node in self._states() if 0 in node.ranks]
        return not holders or holders[-1] == self._node

    def is_over(self) -> bool:
        """Return whether no more rows of this node will come."""
        own = [node for node in self._states() if node.node in {self._node, ""}]
        now = self._clock()
        return bool(own) and all(not _is_running(node) and now - node.time / 1e6 >= SETTLE for node in own)

    def news(self, reported: Mapping[str, Any], latest: Mapping[str, float]) -> tuple[RunNews, dict[str, Any]]:
        """Return what is new since `reported`, and what a sink knows after that."""
        meta = read_meta(self._folder)
        state, cause = overall(self._states())
        config, labels = meta.get("config"), meta["labels"]
        known = [str(one) for one in reported.get("alerts", ())] if isinstance(reported.get("alerts"), list) else []
        alerts = [alert for alert in self._alerts() if _mark(alert) not in set(known)]
        progress, remaining = self._progress(config) if state == "running" else (None, None)
        news = RunNews(
            state=state,
            cause=cause,
            ended=self._ended() if state != "running" else None,
            verdict=self._judged() if state != "running" else "",
            alerts=alerts,
            config=config if isinstance(config, dict) else {},
            tags=tuple(labels["tags"]),
            notes=labels["notes"],
            progress=1.0 if state == "finished" else progress,
            remaining=0.0 if state == "finished" else remaining,
            latest=latest,
        )
        digest = hashlib.sha256(json.dumps([*_steady(news), dict(latest)], default=str).encode()).hexdigest()[:16]
        return news, {"digest": digest, "alerts": [*known, *map(_mark, alerts)][-MOST_ALERTS:]}

    def _states(self) -> list[NodeState]:
        now = self._clock()
        if now - self._read_at >= FRESH:
            self._nodes, self._read_at = read_nodes(self._folder)[0], now
        return self._nodes

    def _first_rank(self) -> RankState | None:
        found = [node.ranks[0] for node in self._states() if 0 in node.ranks]
        return found[-1] if found else None

    def _progress(self, config: Any) -> tuple[float | None, float | None]:
        """Return the share of the planned steps that are done, and the seconds for the others at the pace so far."""
        total, rank = total_steps(config), self._first_rank()
        if not total or rank is None or rank.step is None:
            return None, None
        share = min(1.0, max(0.0, (rank.step + 1) / total))
        if not rank.steps or not rank.step_seconds:
            return share, None
        return share, max(0, total - rank.step - 1) * rank.step_seconds / rank.steps

    def _ended(self) -> float | None:
        ends = [rank.ended for node in self._states() for rank in node.ranks.values() if rank.ended]
        return max(ends) / 1e6 if ends else None

    def _judged(self) -> str:
        if self._known_verdict is None:
            self._known_verdict = self._verdict()
        return self._known_verdict

    def _alerts(self) -> list[AlertChange]:
        """Return the changes of alerts; the files are read again only if they have changed."""
        paths = sorted((self._folder.path / "events").glob("*.jsonl"))
        version = tuple((path.name, path.stat().st_size) for path in paths)
        if version != self._events_version:
            events = [event for event in ours(read_events(self._folder)[0]) if event.get("kind") == "alert"]
            self._events = [_alert(event) for event in events if event.get("state") in {"firing", "resolved"}]
            self._events, self._events_version = self._events[-MOST_ALERTS:], version
        return self._events


def _is_running(node: NodeState) -> bool:
    return not (node.ended or node.ranks) or any(rank.state == "running" for rank in node.ranks.values())


def _alert(event: Mapping[str, Any]) -> AlertChange:
    return AlertChange(
        id=str(event.get("alert") or event.get("rule") or "alert"),
        rule=str(event.get("rule") or "alert"),
        severity=str(event.get("severity") or "warning"),
        state=str(event["state"]),
        text=str(event.get("text") or ""),
        time=float(event["time"]),
        step=event.get("step"),
    )


def _mark(alert: AlertChange) -> str:
    """Return what identifies a change of an alert."""
    return f"{alert.id}:{alert.state}:{alert.time:.3f}"


def _steady(news: RunNews) -> list[Any]:
    """Return what is reported again when it changes; the time left is not among it."""
    return [news.state, news.cause, news.ended, news.verdict, dict(news.config), news.tags, news.notes]
