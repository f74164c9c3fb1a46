"""The list of runs as plain data: identity and state of each run, from its small files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.store.catalog import changed_at
from stepscope.store.layout import RunFolder
from stepscope.store.meta import read_meta
from stepscope.store.states import NodeState, overall, read_nodes

if TYPE_CHECKING:
    from pathlib import Path

CAUSE = 500
"""Maximum characters of a cause."""
NAME = 300


def row(path: Path) -> dict[str, Any]:
    """Return one run of the list; an unreadable one is broken, with the reason."""
    folder = RunFolder(path)
    try:
        meta = read_meta(folder)
    except StepscopeError as error:
        return {**_who(path, path.name, path.name, path.parent.name, changed_at(path)), **_broken(error.cause)}
    nodes, problems = read_nodes(folder)
    created = meta.get("created", 0) / 1e6
    who = _who(path, meta["id"], meta.get("name") or meta["id"], meta.get("project") or "", created)
    if not nodes and problems:
        return {**who, **_broken(problems[0])}
    return {**who, **standing(nodes)}


def unread(path: Path) -> dict[str, Any]:
    """Return the row of a run whose folder has not answered yet: its names alone, nothing is read."""
    who = _who(path, path.name, path.name, path.parent.name, 0.0)
    return {**who, **_broken("its disk has not answered yet"), "state": "reading"}


def standing(nodes: list[NodeState]) -> dict[str, Any]:
    """Return the state of a run from its watchers: state, cause, step, duration, last heartbeat."""
    state, cause = overall(nodes)
    ranks = [(node, rank) for node in nodes for rank in node.ranks.values()]
    started = min((node.true(rank.started) for node, rank in ranks if rank.started), default=None)
    ended = max((node.true(rank.ended or node.time) for node, rank in ranks if rank.ended or node.time), default=0)
    return {
        "state": state,
        "cause": cause[:CAUSE],
        "duration": max(0.0, (ended - started) / 1e6) if started and ended else None,
        "step": max((rank.step for _, rank in ranks if rank.step is not None), default=None),
        "heard": max((node.time for node in nodes), default=0) / 1e6 or None,
        "attempts": len({node.attempt for node in nodes}),
    }


def _who(path: Path, name: str, shown: str, project: str, created: float) -> dict[str, Any]:
    key = f"{path.parent.name}/{path.name}"
    return {"key": key, "id": name[:NAME], "name": shown[:NAME], "project": project[:NAME], "created": created}


def _broken(cause: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("duration", "step", "heard"))
    return {"state": "broken", "cause": cause[:CAUSE], **unknown, "attempts": 0}
