"""How a run ended or stopped: crash, hang, out of memory, dead workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.core.endings import crash_kind, end_words
from stepscope.core.numbers import format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.analysis.diagnosis.evidence import Evidence

CRASHED = ("failed", "killed")
MEMORY_SIGNS = ("out of memory", "cannot allocate memory", "can't allocate memory", "memoryerror", "outofmemoryerror")
ON_A_CARD = ("cuda", "hip ", "out of memory on device", "mps backend")
"""Words in such a message that point to GPU memory."""
WENT_ON, FEW_TIMES = 5, 3
"""Steps after which a program counts as having recovered from out-of-memory; and how often that may happen to one that
searches its batch size."""
LONG_PAUSE = 60.0
"""Minimum seconds of a pause that ended by itself for a warning."""
BY_HAND = ("keyboardinterrupt", "sigint")
"""Words in a cause that show that a person stopped the run."""
WORKER_SIGNS = ("dataloader worker", "worker (pid")


def ends(evidence: Evidence) -> Iterator[Finding]:
    """Yield what ended the run, or stopped it for good."""
    memory = _memory(evidence)
    workers = _workers(evidence)
    yield from memory
    yield from workers
    hung = _hang(evidence)
    yield from hung
    by_hand = any(sign in evidence.cause.lower() for sign in BY_HAND)
    if evidence.state in CRASHED and not memory and not workers and not by_hand:
        yield _crash(evidence, bool(hung))


def _rank(event: Mapping[str, Any]) -> int | None:
    rank = event.get("rank")
    return rank if isinstance(rank, int) and rank >= 0 else None


def _memory(evidence: Evidence) -> list[Finding]:
    told = evidence.of_kind("out_of_memory")
    says = any(sign in evidence.cause.lower() for sign in MEMORY_SIGNS) and evidence.state in CRASHED
    if evidence.state != "oom-killed" and not told and not says:
        return []
    if told:
        return [_ran_out(evidence, told)]
    text = f"the process was killed because memory ran out: {evidence.cause}" if evidence.state == "oom-killed" else ""
    cause = "" if _on_a_card(evidence.cause) else "host"
    return [_ended("oom", text or f"memory ran out: {evidence.cause}", {"state": evidence.state}, cause)]


def _ran_out(evidence: Evidence, told: list[Mapping[str, Any]]) -> Finding:
    """Return the finding about out-of-memory events; only a remark if the program continued with less."""
    event = told[-1]
    where = "".join(f", {what} {event[key]}" for key, what in (("module", "in"), ("place", "at")) if event.get(key))
    wanted = event.get("wanted_bytes")
    size = f" while allocating {format_value(float(wanted), 'bytes')}" if isinstance(wanted, (int, float)) else ""
    text = f"memory ran out{size}{where}{f' ({len(told)} times)' if len(told) > 1 else ''}"
    facts = {key: event.get(key) for key in ("cause", "place", "module", "wanted_bytes", "step", "tensors")}
    cause = "" if event.get("allocator") or _on_a_card(str(event.get("cause", ""))) else "host"
    found = _ended("oom", text, facts, cause, _rank(event))
    if not _went_on(evidence, float(event["time"])):
        return found
    severity = INFO if len(told) <= FEW_TIMES else WARNING
    return replace(found, severity=severity, text=f"{found.text}, and the program continued")


def _on_a_card(cause: str) -> bool:
    return any(sign in cause.lower() for sign in ON_A_CARD)


def _went_on(evidence: Evidence, moment: float) -> bool:
    """Return whether the run continued after it ran out of memory."""
    later = [int((steps.end > moment).sum()) for steps in evidence.ranks]
    return evidence.state not in (*CRASHED, "oom-killed") and min(later, default=0) >= WENT_ON


def _ended(kind: str, text: str, facts: dict[str, Any], cause: str = "", rank: int | None = None) -> Finding:
    return Finding(kind, text[:600], CRITICAL, remedy(kind, cause), facts, confidence=0.98, rank=rank)


def _workers(evidence: Evidence) -> list[Finding]:
    found = evidence.of_kind("worker_died")
    lowered = evidence.cause.lower()
    if not found:
        if (
            evidence.state in CRASHED
            and any(sign in lowered for sign in WORKER_SIGNS)
            and "exited unexpectedly" in lowered
        ):
            return [_ended("dead_worker", f"a data loader worker died: {evidence.cause}", {"state": evidence.state})]
        return []
    event = found[0]
    dead = event.get("workers")
    codes = ", ".join(
        f"worker {one.get('worker', '?')} with exit code {one.get('exit_code', one.get('code', '?'))}"
        for one in (dead if isinstance(dead, list) else [])
        if isinstance(one, dict)
    )
    at = f" at step {event['step']}" if isinstance(event.get("step"), int) else ""
    text = f"a data loader worker died{at}{': ' + codes if codes else ''}"
    facts = {"workers": dead, "error": event.get("error"), "step": event.get("step"), "times": len(found)}
    return [_ended("dead_worker", text, facts, rank=_rank(event))]


def _hang(evidence: Evidence) -> list[Finding]:
    """Return hangs that did not end, which are critical, and stalls that ended, with their cost in seconds."""
    found: list[Finding] = []
    open_since: dict[int | None, Mapping[str, Any]] = {}
    for event in evidence.of_kind("stalled", "hung", "recovered", "exception", "out_of_memory"):
        rank = _rank(event)
        if event.get("kind") not in ("stalled", "hung"):
            if event.get("kind") != "recovered" and open_since.get(rank, {}).get("kind") == "hung":
                continue  # an error after that long, such as a collective that timed out, is how a hang ends
            begun = open_since.pop(rank, None)
            if begun is not None:
                found.append(_stood(begun, float(event["time"]), over=True))
        elif rank not in open_since or event.get("kind") == "hung":
            first = open_since.get(rank, event)
            open_since[rank] = {**event, "time": first["time"]}
    end = max((float(event["time"]) for event in evidence.events), default=0.0)
    found += [_stood(event, end, over=False) for event in open_since.values()]
    return sorted(found, key=lambda one: -(one.cost_seconds or 0.0))[:3]


def _stood(event: Mapping[str, Any], end: float, *, over: bool) -> Finding:
    begun = float(event["time"]) - float(event.get("seconds") or 0.0)
    lasted = max(float(event.get("seconds") or 0.0), end - begun)
    phase = event.get("phase")
    where = f" in {phase}" if phase else ""
    step = event.get("step")
    after = f" after step {step}" if isinstance(step, int) else ""
    text = f"the training hung for {format_value(lasted, 'seconds')}{after}{where}"
    text += ", then went on" if over else ", and did not go on"
    facts = {
        "seconds": lasted,
        "step": step,
        "phase": phase,
        "why": event.get("why"),
        "hung": event.get("kind") == "hung",
    }
    # A pause that ended by itself while something still moved may be the machine's fault; a hang that ended is not.
    severity = CRITICAL if not over else WARNING if event.get("kind") == "hung" or lasted >= LONG_PAUSE else INFO
    sure = 0.9 if event.get("kind") == "hung" or not over else 0.7
    return Finding(
        "hang", text, severity, remedy("hang"), facts, confidence=sure, cost_seconds=lasted, rank=_rank(event)
    )


def _crash(evidence: Evidence, hung: bool) -> Finding:  # noqa: FBT001 - one caller
    told = evidence.of_kind("exception", "ended")
    event = told[-1] if told else {}
    why = evidence.cause or str(event.get("error") or event.get("cause") or "for an unknown reason")
    text = f"the run ended unexpectedly, {end_words(evidence.state, why)}"
    facts = {"state": evidence.state, "cause": why, "step": event.get("step"), "after_hang": hung}
    return _ended("crash", text, facts, crash_kind(evidence.state, why), _rank(event))
