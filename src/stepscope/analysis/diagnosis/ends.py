"""How a run ended or stopped: crash, hang, out of memory, dead workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.analysis.hang.standing import standing_verdict
from stepscope.core.endings import OUT_OF_MEMORY, PROBABLY_OUT_OF_MEMORY, crash_kind, end_words
from stepscope.core.numbers import format_items, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.first_error.evidence import FirstError
    from stepscope.analysis.hang.verdict import HangVerdict

CRASHED = ("failed", "killed")
GONE = "node_gone"
"""Kind of the finding about a job that ended because some of its ranks were taken away, or left."""
MEMORY_SIGNS = ("out of memory", "cannot allocate memory", "can't allocate memory", "memoryerror", "outofmemoryerror")
GPU_SIGNS = ("cuda", "hip ", "out of memory on device", "mps backend")
"""Words in such a message that point to GPU memory."""
WENT_ON, FEW_TIMES = 5, 3
"""A program has recovered from out-of-memory after this many steps; one that searches its batch size runs out this
often."""
GUESSED = 0.7
"""Confidence in an end that nobody saw."""
LONG_PAUSE = 60.0
"""Minimum seconds of a pause that ended by itself for a warning."""
BY_HAND = ("keyboardinterrupt", "sigint")
"""Words in a cause that show that a person stopped the run."""
KINDS = {
    "gpu_memory": ("oom", ""),
    "host_memory": ("oom", "host"),
    "worker": ("dead_worker", ""),
    "preempted": (GONE, ""),
    "left": (GONE, "left"),
    "hang": ("crash", "silent"),
}
"""Kind and cause of the finding about a first error, if it is not a crash."""
SILENT = ("killed", "lost")
"""Kinds of first errors of ranks that could not say a word."""
WORKER_SIGNS = ("dataloader worker", "worker (pid")


def ends(evidence: Evidence) -> Iterator[Finding]:
    """Yield what ended the run, or stopped it for good."""
    first, hung = evidence.first_error, _hang(evidence)
    if first is not None and _tells(first, evidence.state):
        yield _began(first, evidence.state) if first.ranks else _unknown(first, evidence)
        yield from hung
        return
    memory, workers = _memory(evidence), _workers(evidence)
    yield from (*memory, *workers, *hung)
    if evidence.state not in CRASHED or memory or workers or _has(evidence.cause, BY_HAND):
        return
    events = evidence.of_kind("exception", "ended")
    event = events[-1] if events else {}
    why = evidence.cause or str(event.get("error") or event.get("cause") or "for an unknown reason")
    text = f"the run ended unexpectedly, {end_words(evidence.state, why)}"
    facts = {"state": evidence.state, "cause": why, "step": event.get("step"), "after_hang": bool(hung)}
    yield _ended("crash", text, facts, crash_kind(evidence.state, why), _rank(event))


def _tells(first: FirstError, state: str) -> bool:
    """Return whether the first error says more than the end of the run, which other ranks took part in."""
    if not first.ranks:
        return state in CRASHED
    return bool(first.others) and first.kind != "stopped"


def _unknown(first: FirstError, evidence: Evidence) -> Finding:
    """Return the finding about a job of which all ranks say only that they lost another one."""
    facts = {"state": evidence.state, "cause": evidence.cause, "first_error": first.as_dict(), "step": first.step}
    return _ended("crash", f"{first.summary} ({first.why})", facts, "silent")


def _began(first: FirstError, state: str) -> Finding:
    """Return the finding about the error of one rank, or of some, that ended all the others."""
    ended = crash_kind("killed" if first.kind in SILENT else state, first.error.removeprefix("failed: "))
    kind, cause = KINDS.get(first.kind, ("crash", ended if first.kind in (*SILENT, "exit", "native") else ""))
    followers = sum(len(other.ranks) for other in first.others)
    text = first.summary if kind == GONE or first.kind == "hang" else f"the first error is that of {first.summary}"
    if followers and first.why:
        text += f" ({first.why}; {format_items(followers, 'other rank')} ended after it)"
    facts = {"state": state, "cause": first.error, "first_error": first.as_dict(), "step": first.step}
    return replace(_ended(kind, text, facts, cause, first.rank), confidence=first.confidence)


def _rank(event: Mapping[str, Any]) -> int | None:
    rank = event.get("rank")
    return rank if isinstance(rank, int) and rank >= 0 else None


def _memory(evidence: Evidence) -> list[Finding]:
    events = evidence.of_kind("out_of_memory")
    if events:
        return [_ran_out(evidence, events)]
    killed = evidence.state == "oom-killed"
    if not killed and not (evidence.state in CRASHED and _has(evidence.cause, MEMORY_SIGNS)):
        return []
    begins, _, figures = evidence.cause.partition(": ")
    is_guess = begins == PROBABLY_OUT_OF_MEMORY
    what = "memory ran out"
    if killed:
        what = f"the process was {'probably ' if is_guess else ''}killed because memory ran out"
    why = figures if figures and begins in {OUT_OF_MEMORY, PROBABLY_OUT_OF_MEMORY} else evidence.cause
    cause = "" if _has(evidence.cause, GPU_SIGNS) else "host"
    found = _ended("oom", f"{what}: {why}", {"state": evidence.state}, cause)
    return [replace(found, confidence=GUESSED) if is_guess else found]


def _ran_out(evidence: Evidence, events: list[Mapping[str, Any]]) -> Finding:
    """Return the finding about out-of-memory events; it is less severe if the program continued with less."""
    event = events[-1]
    where = "".join(f", {what} {event[key]}" for key, what in (("module", "in"), ("place", "at")) if event.get(key))
    wanted = event.get("wanted_bytes")
    size = f" while allocating {format_value(float(wanted), 'bytes')}" if isinstance(wanted, (int, float)) else ""
    text = f"memory ran out{size}{where}{f' ({len(events)} times)' if len(events) > 1 else ''}"
    facts = {key: event.get(key) for key in ("cause", "place", "module", "wanted_bytes", "step", "tensors")}
    cause = "" if event.get("allocator") or _has(str(event.get("cause", "")), GPU_SIGNS) else "host"
    found = _ended("oom", text, facts, cause, _rank(event))
    later = [int((steps.end > float(event["time"])).sum()) for steps in evidence.ranks]
    if evidence.state in (*CRASHED, "oom-killed") or min(later, default=0) < WENT_ON:
        return found
    severity = INFO if len(events) <= FEW_TIMES else WARNING
    return replace(found, severity=severity, text=f"{found.text}, and the program continued")


def _has(cause: str, signs: tuple[str, ...]) -> bool:
    return any(sign in cause.lower() for sign in signs)


def _ended(kind: str, text: str, facts: dict[str, Any], cause: str = "", rank: int | None = None) -> Finding:
    return Finding(kind, text[:600], CRITICAL, remedy(kind, cause), facts, confidence=0.98, rank=rank)


def _workers(evidence: Evidence) -> list[Finding]:
    found = evidence.of_kind("worker_died")
    if not found:
        died = evidence.state in CRASHED and _has(evidence.cause, WORKER_SIGNS)
        died = died and _has(evidence.cause, ("exited unexpectedly",))
        text = f"a data loader worker died: {evidence.cause}"
        return [_ended("dead_worker", text, {"state": evidence.state})] if died else []
    event, step = found[0], found[0].get("step")
    dead = event.get("workers")
    codes = ", ".join(
        f"worker {one.get('worker', '?')} with exit code {one.get('exit_code', one.get('code', '?'))}"
        for one in (dead if isinstance(dead, list) else [])
        if isinstance(one, dict)
    )
    at = f" at step {step}" if isinstance(step, int) else ""
    text = f"a data loader worker died{at}{': ' + codes if codes else ''}"
    facts = {"workers": dead, "error": event.get("error"), "step": step, "times": len(found)}
    return [_ended("dead_worker", text, facts, rank=_rank(event))]


def _hang(evidence: Evidence) -> list[Finding]:
    """Return hangs that did not end, which are critical, and stalls that ended, with their cost in seconds.

    A program that has finished did not hang: after its last step it saved, evaluated or waited.
    """
    if evidence.foreign:
        return _silence(evidence)
    found: list[Finding] = []
    open_since: dict[int | None, Mapping[str, Any]] = {}
    for event in evidence.of_kind("stalled", "hung", "recovered", "exception", "out_of_memory"):
        rank = _rank(event)
        if event.get("kind") not in ("stalled", "hung"):
            if event.get("kind") != "recovered" and open_since.get(rank, {}).get("kind") == "hung":
                continue  # an error after that long, such as a collective that timed out, is how a hang ends
            begun = open_since.pop(rank, None)
            if begun is not None:
                found.append(_stood(begun, float(event["time"]), "went on"))
        elif rank not in open_since or event.get("kind") == "hung":
            first = open_since.get(rank, event)
            open_since[rank] = {**event, "time": first["time"], "seconds": first.get("seconds")}
    end = max((float(event["time"]) for event in evidence.events), default=0.0)
    is_finished = evidence.state == "finished"
    still = [_stood(event, end, "finished" if is_finished else "") for event in open_since.values()]
    verdict = None if is_finished else standing_verdict(evidence.events)
    found += still if verdict is None else [_judged(verdict, still)]
    return sorted(found, key=lambda one: -(one.cost_seconds or 0.0))[:3]


def _judged(verdict: HangVerdict, still: list[Finding]) -> Finding:
    """Return one finding for all ranks that stand still: what the watchers found out together."""
    longest = max(still, key=lambda one: one.cost_seconds or 0.0, default=None)
    facts = {} if longest is None else {key: longest.evidence[key] for key in ("seconds", "step", "phase")}
    facts |= {"verdict": verdict.kind, "ranks": list(verdict.ranks), "waiting": list(verdict.waiting)}
    return Finding(
        "hang",
        f"{verdict.text[:1].lower()}{verdict.text[1:].rstrip('.')}",
        CRITICAL,
        verdict.remedy or remedy("hang"),
        {**facts, "sources": dict(verdict.evidence)},
        confidence=verdict.confidence,
        cost_seconds=None if longest is None else longest.cost_seconds,
        rank=verdict.ranks[0] if len(verdict.ranks) == 1 else None,
    )


def _silence(evidence: Evidence) -> list[Finding]:
    """Return since when a live run of another tool has written nothing; why, its files do not show."""
    events = evidence.of_kind("stalled", "recovered")
    if evidence.state != "running" or not events or events[-1].get("kind") != "stalled":
        return []
    event, end = events[-1], max(float(one["time"]) for one in evidence.events)
    found = _stood(event, end)
    at = f" after step {event['step']}" if isinstance(event.get("step"), int) else ""
    lasted = format_value(found.evidence["seconds"], "seconds")
    text = f"nothing new came for {lasted}{at}: the training has ended, stands still, or its writer buffers"
    return [
        replace(found, text=text, severity=WARNING, remedy=remedy("hang", "silent"), confidence=0.5, cost_seconds=None)
    ]


def _stood(event: Mapping[str, Any], end: float, then: str = "") -> Finding:
    """Return the finding about a stall; `then` is what the program did at its end, empty if it did not end."""
    waited = float(event.get("seconds") or 0.0)
    lasted = max(waited, end - (float(event["time"]) - waited))
    phase, step, hung = event.get("phase"), event.get("step"), event.get("kind") == "hung"
    after, where = f" after step {step}" if isinstance(step, int) else "", f" in {phase}" if phase else ""
    what = "stood still" if then == "finished" else "hung"
    text = f"the training {what} for {format_value(lasted, 'seconds')}{after}{where}"
    text += f", then {then}" if then else ", and did not go on"
    facts = {"seconds": lasted, "step": step, "phase": phase, "why": event.get("why"), "hung": hung}
    # A pause that ended by itself while something still moved may be the machine's fault; a hang that ended is not.
    is_long = lasted >= LONG_PAUSE and then != "finished"
    severity = CRITICAL if not then else WARNING if hung or is_long else INFO
    do = remedy("hang", then if then == "finished" else "")
    found = Finding("hang", text, severity, do, facts, confidence=0.9 if hung or not then else 0.7)
    return replace(found, cost_seconds=lasted, rank=_rank(event))
