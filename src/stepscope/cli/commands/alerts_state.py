"""Print firing and past alerts of a run, acknowledge alerts, and mute rules."""

from __future__ import annotations

import getpass
import os
import time
from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery.outbox import deliveries
from stepscope.alerts.evaluation.history import ACTIVE, alerts_of
from stepscope.alerts.user_requests import LASTS, ask
from stepscope.cli.command import FINE, print_json, show
from stepscope.cli.named_run import open_run
from stepscope.cli.text.table import Cell, Column, table
from stepscope.core.errors import StepscopeError
from stepscope.core.numbers import format_age, format_count
from stepscope.core.terminal_text import cut, plain
from stepscope.store.events import encode_event
from stepscope.store.layout import write_once

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.cli.text.terminal import Paint
    from stepscope.store.reader import Past

SEVERITIES = {"critical": "red bold", "warning": "yellow", "info": "cyan"}
PATIENCE = 10.0
"""Seconds that a watcher has to answer a request."""
LIVE = ("running", "stalled")
KEPT = ("alert", "rule", "severity", "text", "remedy", "labels", "rank", "step", "key")
"""What an acknowledgement repeats of its alert."""


def listed(options: argparse.Namespace) -> int:
    """Print the firing alerts."""
    past = open_run(options.run, options.dir)
    rows = _alerts(past)
    shown = rows if options.all else [row for row in rows if row["state"] in ACTIVE]
    told = deliveries(past.path)
    rest = len(rows) - len(shown)
    facts = {"run": _run(past), "alerts": shown, "resolved": rest, "deliveries": told}
    return show(options, facts, lambda width, paint: _page(past, shown, rest, told, width, paint))


def history(options: argparse.Namespace) -> int:
    """Print every alert with each change of its state."""
    past = open_run(options.run, options.dir)
    rows = _alerts(past)
    nothing = [f"no alert in run {plain(past.id)}"]
    facts = {"run": _run(past), "alerts": rows}
    return show(options, facts, lambda width, paint: _history(rows, width, paint) if rows else nothing)


def _alerts(past: Past) -> list[dict[str, Any]]:
    return alerts_of(past.events("alert"))


def _run(past: Past) -> dict[str, str]:
    return {"id": past.id, "path": str(past.path), "state": past.state}


def _page(
    past: Past,
    rows: Sequence[dict[str, Any]],
    rest: int,
    told: Sequence[dict[str, Any]],
    width: int,
    paint: Paint,
) -> Iterator[str]:
    yield f"{paint(plain(past.id), 'bold')}  {plain(past.state)}"
    if not rows:
        yield paint("no alert fires", "green")
    else:
        shape = [Column("severity"), Column("state", optional=True), Column("since", right=True)]
        shape += [Column("rule"), Column("what", narrowest=30), Column("alert", optional=True)]
        yield from table(shape, [_row(row) for row in rows], width, paint)
        for remedy in dict.fromkeys(plain(row["remedy"]) for row in rows if row["remedy"]):
            yield paint(cut(f"  {remedy}", width), "dim")
    if rest:
        yield paint(f"{format_count(rest)} resolved: --all shows them, `stepscope alerts history` each change", "dim")
    for row in told:
        yield _delivery(row, paint)


def _row(row: dict[str, Any]) -> list[Cell | str]:
    style = SEVERITIES.get(row["severity"], "")
    state = "" if row["state"] == "firing" else row["state"]
    since = format_age(max(0.0, time.time() - row["since"]))
    texts = (plain(row[key]) for key in ("rule", "text", "alert"))
    return [Cell(plain(row["severity"]), style), state, since, *texts]


def _delivery(row: dict[str, Any], paint: Paint) -> str:
    name, why = plain(row["channel"]), plain(row["why"])
    if row["state"] == "dead":
        return paint(f"{name}: {format_count(row['dead'])} alerts were given up: {why}", "red")
    if row["state"] == "failing":
        return paint(f"{name}: {format_count(row['waiting'])} alerts wait: {why}", "yellow")
    waiting = f", {format_count(row['waiting'])} wait" if row["waiting"] else ""
    return paint(f"{name}: sent {format_count(row['sent'])}{waiting}", "dim")


def _history(rows: Sequence[dict[str, Any]], width: int, paint: Paint) -> Iterator[str]:
    for row in reversed(rows):
        head = f"{plain(row['rule'])}  {plain(row['alert'])}"
        yield paint(plain(row["severity"]), SEVERITIES.get(row["severity"], "")) + "  " + paint(head, "bold")
        for change in row["transitions"]:
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change["time"]))
            yield cut(f"  {moment}  {change['state']:<12}  {plain(change['text'])}", width)


def acknowledge(options: argparse.Namespace) -> int:
    """Acknowledge an alert."""
    past = open_run(options.run, options.dir)
    rows = [row for row in _alerts(past) if options.alert in {row["alert"], row["rule"]}]
    active = [row for row in rows if row["state"] in ACTIVE]
    what = f"acknowledge {options.alert!r}"
    if not active:
        cause = "it is resolved" if rows else "no alert or rule of that name has fired in this run"
        raise StepscopeError(what, cause, "see `stepscope alerts list`")
    by = options.by or getpass.getuser()
    if past.state in LIVE:
        ask(past.path, {"do": "acknowledge", "alert": options.alert, "by": by})
        names = {row["alert"] for row in active}
        _await(past, what, lambda: not names & {row["alert"] for row in _alerts(past) if row["state"] == "firing"})
    else:
        write_answer(past, active, by)
    _say(options, past, {"acknowledged": [row["alert"] for row in active], "by": by})
    return FINE


def write_answer(past: Past, active: Sequence[dict[str, Any]], by: str) -> None:
    """Acknowledge alerts of a run that has ended, in a separate file, because it has no watcher any more."""
    now = round(time.time() * 1e6)
    lines = []
    for row in active:
        kept = {key: row[key] for key in KEPT}
        facts = {"kind": "alert", "state": "acknowledged", "previous": row["state"], "evidence": {"by": by}, **kept}
        lines.append(encode_event({"time": now, "attempt": 0, **facts}))
    path = past.path / "events" / f"answers.{os.urandom(4).hex()}-0.jsonl"
    write_once(path, b"".join(lines))


def silence(options: argparse.Namespace) -> int:
    """Mute a rule for a while, or unmute it."""
    past = open_run(options.run, options.dir)
    what = f"silence {options.rule!r}"
    if past.state not in LIVE:
        raise StepscopeError(what, f"the run is {past.state}", "it sends no notifications any more")
    do = "unsilence" if options.lift else "silence"
    by = options.by or getpass.getuser()
    request = ask(past.path, {"do": do, "rule": options.rule, "seconds": options.span, "by": by})
    _await(past, what, lambda: any(event.get("request") == request for event in past.events("alert_request")))
    _say(options, past, {do + "d": options.rule, "seconds": None if options.lift else options.span, "by": by})
    return FINE


def _await(past: Past, what: str, is_done: Callable[[], bool], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > end:
            cause = f"no watcher of run {past.id} has answered within {seconds:.0f} s"
            remedy = f"the request stays for {LASTS / 60:.0f} min: run `stepscope alerts list` later"
            raise StepscopeError(what, cause, remedy)
        time.sleep(0.1)


def _say(options: argparse.Namespace, past: Past, facts: dict[str, Any]) -> None:
    if options.json:
        print_json({"run": _run(past), **facts})
        return
    verb, what = next(iter(facts.items()))
    names = ", ".join(what) if isinstance(what, list) else str(what)
    span = f" for {facts['seconds'] / 60:.0f} min" if facts.get("seconds") else ""
    print(f"{verb} {plain(names)}{span}")
