"""Findings about learning: non-finite values, divergence, spikes, plateaus, gradients, learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.evidence import course_of
from stepscope.analysis.diagnosis.progress import PUSHED, progress
from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.analysis.series.rises import begun_at, comes_down, lasting_rise, rise_text
from stepscope.analysis.series.spikes import spikes
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.analysis.diagnosis.evidence import Evidence, Track
    from stepscope.analysis.series.spikes import Spike
    from stepscope.core.arrays import Floats


FEWEST = 40
"""Values of a loss below which its course is not judged."""
LEARNED, LOST = 0.7, 0.9
"""A loss that had fallen below the first of where it began, and ends above the second of it, has lost what was
learned."""
LASTING = 3
"""Parts at the end, of twenty, in which it must be high."""
BACK, MOST_BACK = 0.25, 0.1
"""Share of its rise below which a loss has come back; and the share of the values at the end that may have."""
MOST_TOLD = 3
GRADIENTS = {
    "exploding_gradient": "exploding_gradients",
    "vanishing_gradient": "vanishing_gradients",
    "dead_gradient": "dead_gradients",
}
OUTGROWN = 0.7
"""Growth of the gradients by that of the loss, both as logarithms, from which on the gradients are the cause."""
CALM_VALUES, CALM_REACH, SUDDEN = 3, 0.1, 1.5
"""With fewer values than that: how many must lie within which share of their median before one that is so many times
as high is a spike."""
THIN, MOSTLY_DEAD, FEWEST_LOOKS = 1e-6, 0.5, 2
"""Gradient per element of the weakest layer by that of the strongest from which on it has vanished (healthy ones have
0.001 to 0.2); share of the weights that must have none; and looks that must say so."""
MOST_SPIKES = 0.02
"""Share of the values that may be spikes; more are how this loss is."""
ROLLING, CLEAR = 41, 3.0
"""Values around a point whose median is its level; and times the distance that 99 % of all others keep from theirs, by
which a spike must stand out."""
BLOCK = 10_000
"""Values whose windows are held in memory at once."""
SURVIVED, MOST_LEFT_OUT = 20, 0.1
"""Finite values of the loss after gradients that were not, from which on these have done no harm; and the share of the
gradients that may be so."""
NEAR, FOLLOWS = 20, 3.0
"""Values of the loss before a large gradient that are its level; and times by which the gradient may grow more than the
loss and still follow from it."""
EXPLODED, EXPLOSIONS, VIOLENT, FEW_EXPLOSIONS = 10.0, 3, 100.0, 2
"""Times its level from which on a norm has exploded; episodes of that which are a finding, for a single one is a hard
batch; and how many suffice that are so many times their level."""


def learning(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings about loss, gradients and learning rate."""
    loss = evidence.track("loss")
    course = loss.finite() if loss is not None else None
    stages = evidence.stages(course) if course is not None else []
    broken = list(_non_finite(evidence))
    diverged = [one for stage in stages if len(stage) >= FEWEST for one in _lost(stage)][:1]
    ruined = [one for one in (*broken, *diverged) if one.severity == CRITICAL]
    weak = list(_gradients(evidence, ruined[0] if ruined else None, course))
    weak += [] if broken else list(_layers(evidence))
    later = list(progress(evidence, broken=bool(ruined)))
    if any(one.kind in ("vanishing_gradients", "dead_gradients") for one in weak):
        later = [one for one in later if one.kind != "plateau"]  # it follows from them
    yield from (*broken, *diverged, *weak, *later)
    if not ruined:
        yield from _rises(stages, later, weak)


def _rises(stages: list[Track], later: list[Finding], weak: list[Finding]) -> list[Finding]:
    """Return a sudden rise of the loss, or one that lasts, if no jump of the rate and no gradients explain it."""
    sudden = _sudden_rises(stages, later)
    explained = sudden or any(one.evidence.get("cause") == "jump" for one in later)
    explained = explained or any(one.kind == "exploding_gradients" for one in weak)
    return sudden if explained or not stages else list(_risen(stages[-1]))


def _lost(loss: Track) -> Iterator[Finding]:
    """Yield that the progress was lost, judged by the whole curve; with the numbers of the alerts, if any fired."""
    whole = list(_diverged(loss))
    newest = [one for one in _risen(loss) if one.severity == CRITICAL]
    yield from newest if whole and newest else whole


def _risen(loss: Track) -> Iterator[Finding]:
    """Yield a rise that lasts until now, in the words of the alerts on the loss."""
    rise = lasting_rise(loss.value)
    if rise is None:
        return
    step = int(loss.step[rise.index])
    severity = CRITICAL if rise.is_divergence(begun_at(loss.value)) else WARNING
    facts = {"best": rise.before, "last": rise.now, "step": step, "range": [step, int(loss.step[-1])]}
    advice = remedy("divergence", step=step)
    yield Finding("divergence", rise.text("loss", step), severity, advice, facts, confidence=0.8)


def _sudden_rises(stages: list[Track], later: list[Finding]) -> list[Finding]:
    """Return a sudden rise of the loss, if no jump of the learning rate came before it."""
    jumped = min((one.evidence["step"] for one in later if one.evidence.get("cause") == "jump"), default=math.inf)
    found = [one for stage in stages for one in (_spikes(stage) if len(stage) >= FEWEST else _sudden(stage))]
    return [one for one in found if one.evidence["step"] < jumped][:1]


def _non_finite(evidence: Evidence) -> Iterator[Finding]:
    """Yield the first non-finite value of the training."""
    found = [*_broken_series(evidence), *_broken_gradients(evidence)]
    if not found:
        return
    _, name, step, rank = min(found)
    loss = evidence.track("loss")
    if not any("grad" not in one[1] for one in found) and _harmless(evidence, loss):
        yield _survived(found)
        return
    share = float((~np.isfinite(loss.value)).mean()) if loss is not None and len(loss) else None
    text = f"{name} is not finite from step {step} on" if share else f"{name} was not finite at step {step}"
    facts = {"first": name, "step": step, "loss_share": share, "range": [max(0, step - 20), step + 20]}
    advice = remedy("non_finite", step=step)
    yield Finding("non_finite", text, CRITICAL, advice, facts, confidence=0.97, rank=rank if rank >= 0 else None)


def _harmless(evidence: Evidence, loss: Track | None) -> bool:
    """Return whether the loss stayed finite long after non-finite gradients: a scaler, or the program, skipped them.

    A scaler of mixed precision tries larger and larger scales, and throws away the steps for which one was too large.
    """
    if loss is None or not np.isfinite(loss.value).all():
        return False
    last = max((float(event["time"]) for event in evidence.of_kind("nonfinite_gradient")), default=0.0)
    for name, by_rank in evidence.series.items():
        for track in by_rank.values() if _is_number(name) and "grad" in name else ():
            bad = ~np.isfinite(track.value)
            if float(bad.mean()) > MOST_LEFT_OUT:
                return False
            last = max(last, float(track.time[bad][-1])) if bad.any() else last
    return int((loss.time > last).sum()) >= SURVIVED


def _survived(found: list[tuple[float, str, int, int]]) -> Finding:
    _, name, step, rank = min(found)
    text = f"{name} was not finite at step {step}; the loss stayed finite, so that update was skipped"
    facts = {"first": name, "step": step, "range": [max(0, step - 20), step + 20]}
    advice = remedy("non_finite", "gradient", step=step)
    return Finding("non_finite", text, INFO, advice, facts, confidence=0.7, rank=rank if rank >= 0 else None)


def _broken_series(evidence: Evidence) -> Iterator[tuple[float, str, int, int]]:
    """Yield when, in which metric, at which step and rank a value was not finite for the first time."""
    for name, by_rank in evidence.series.items():
        for rank, track in by_rank.items() if _is_number(name) else ():
            bad = np.flatnonzero(~np.isfinite(track.value))
            if len(bad):
                yield float(track.time[bad[0]]), name, int(track.step[bad[0]]), rank


def _broken_gradients(evidence: Evidence) -> Iterator[tuple[float, str, int, int]]:
    for event in evidence.of_kind("nonfinite_gradient"):
        name = f"gradient {event.get('name', '')}".strip()
        yield float(event["time"]), name, int(event.get("step") or 0), int(event.get("rank") or 0)


def _is_number(name: str) -> bool:
    """Return whether a metric is one of the training's own numbers."""
    last = name.rsplit("/", 1)[-1]
    return (
        last.endswith("loss")
        or last in ("grad_norm", "perplexity", "objective")
        or name.startswith(("grad_norm", "loss"))
    )


def _diverged(loss: Track) -> Iterator[Finding]:
    """Yield a loss that diverged for good: far above its best, and above its start."""
    level, spread = course_of(loss)
    lowest = int(np.argmin(level))
    best, begun = float(level[lowest]), float(np.median(loss.value[: max(3, len(loss) // 50)]))
    last = float(min(level[-2:]))  # both of the last parts
    rise, noise = last - best, float(np.median(spread))
    if lowest >= len(level) - 2 or rise <= 6 * max(noise, 1e-9):
        return
    lost = 0 < best < LEARNED * begun and last > LOST * begun
    grown = last > begun + 0.5 * abs(begun)
    # A loss that keeps growing was high enough before its last value.
    rise = min(rise, max(begun - best, 0.5 * abs(begun), 0.25 * rise))
    if not (lost or grown) or float(min(level[-LASTING:])) < best + 0.3 * rise:
        return
    below = loss.value <= best + BACK * rise
    risen = lowest + int(np.argmax(level[lowest:] >= best + 0.5 * rise))
    late = below[-max(3, len(loss) * LASTING // len(level)) :]
    if float(min(level[risen:])) < best + BACK * rise or int(late.sum()) > max(1, MOST_BACK * len(late)):
        return  # it comes and goes, as where targets are learned, too: it did not rise for good
    low = np.flatnonzero(below)
    at = min(len(loss) - 1, int(low[-1]) + 1) if len(low) else 0
    start = int(loss.step[at])
    if comes_down(loss.value[at:], rise):
        return  # a harder stage, which is being learned
    text = rise_text("loss", best, last, start)
    facts = {"best": best, "last": last, "step": start, "range": [start, int(loss.step[-1])]}
    yield Finding("divergence", text, CRITICAL, remedy("divergence", step=start), facts, confidence=0.9)


def _clear(loss: Track) -> list[Spike]:
    """Return the spikes that exceed everything else in the whole series, which is known afterwards.

    The losses of reinforcement learning and of adversaries have heavy tails, in which every detector that only knows
    the past finds spikes.
    """
    found = spikes(loss.value).spikes
    if not found or len(found) > MOST_SPIKES * len(loss):
        return []
    away = np.abs(loss.value - _level(loss.value, min(ROLLING, len(loss) // 4 * 2 + 1)))
    calm = np.ones(len(loss), bool)
    for one in found:
        calm[max(0, one.index - 1) : one.end + 2] = False
    reach = float(np.quantile(away[calm], 0.99)) if calm.any() else 0.0
    return [one for one in found if one.top - one.level >= CLEAR * reach]


def _level(values: Floats, width: int) -> Floats:
    """Return the medians of the values around each."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, width // 2, mode="edge"), width)
    return np.concatenate([np.median(windows[at : at + BLOCK], axis=1) for at in range(0, len(values), BLOCK)])


def _spikes(loss: Track) -> Iterator[Finding]:
    found = sorted(_clear(loss), key=lambda one: -one.height)
    if not found:
        return
    steps = [int(loss.step[one.index]) for one in found]
    one = found[0]
    many = (
        f"; {len(found) - 1} more such jumps" if len(found) > 2 else "; one more such jump" if len(found) == 2 else ""
    )
    falls = not one.recovered and comes_down(loss.value[one.peak :], one.top - one.level)
    back = "and came back" if one.recovered else "and is coming down again" if falls else "and has not come back"
    text = f"the loss jumped from {one.level:.4g} to {one.top:.4g} at step {steps[0]}, {back}{many}"
    facts: dict[str, Any] = {
        "step": steps[0],
        "steps": sorted(steps)[:20],
        "height": one.height,
        "level": one.level,
        "top": one.top,
    }
    facts["range"] = [max(0, steps[0] - 50), steps[0] + 50]
    severity = WARNING if one.recovered or falls else CRITICAL
    yield Finding("loss_spike", text, severity, remedy("loss_spike", step=steps[0]), facts, confidence=0.85)


def _sudden(loss: Track) -> Iterator[Finding]:
    """Yield an obvious rise of a loss with few values."""
    for at in range(CALM_VALUES, len(loss)):
        before = loss.value[max(0, at - 10) : at]
        level, reach = float(np.median(before)), float(before.max() - before.min())
        if level > 0 and loss.value[at] > SUDDEN * level and reach < CALM_REACH * level:
            step = int(loss.step[at])
            text = f"the loss jumped from {level:.4g} to {loss.value[at]:.4g} at step {step}"
            facts = {
                "step": step,
                "level": level,
                "top": float(loss.value[at]),
                "range": [int(loss.step[0]), step + 50],
            }
            yield Finding("loss_spike", text, WARNING, remedy("loss_spike", step=step), facts, confidence=0.75)
            return


def _gradients(evidence: Evidence, broken: Finding | None, loss: Track | None) -> Iterator[Finding]:
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in evidence.of_kind(*GRADIENTS):
        by_kind.setdefault(str(event["kind"]), []).append(event)
    if broken is None:
        by_kind.setdefault("exploding_gradient", _episodes(evidence))
        by_kind["exploding_gradient"] = _explosions(by_kind["exploding_gradient"], loss)
    for kind, told in by_kind.items():
        if not told:
            continue
        first = told[0]
        name = GRADIENTS[kind]
        text = f"{first.get('name', 'grad_norm')} at step {first.get('step')}: {first.get('cause', '')}"
        facts = {key: first.get(key) for key in ("step", "value", "compared")} | {"times": len(told)}
        sure = 0.9 if len(told) > 1 or kind != "exploding_gradient" else 0.7
        severity = WARNING
        if broken is not None and broken.kind == "divergence" and _outgrows(evidence, loss) and not _pushed(evidence):
            severity, sure = CRITICAL, 0.9
        advice = remedy(name, step=first.get("step"))
        yield Finding(name, text, severity, advice, facts, confidence=sure, rank=first.get("rank"))


def _explosions(every: list[Mapping[str, Any]], loss: Track | None) -> list[Mapping[str, Any]]:
    """Return the episodes that no loss explains, if they are many or violent; else none."""
    told = [one for one in every if not _follows(one, loss)]
    violent = sum(_times(one) >= VIOLENT for one in told)
    return told if len(told) >= EXPLOSIONS or violent >= FEW_EXPLOSIONS else []


def _times(event: Mapping[str, Any]) -> float:
    """Return how many times its usual value a gradient has."""
    norm, usual = event.get("value"), event.get("compared")
    return float(norm) / float(usual) if isinstance(norm, float) and isinstance(usual, float) and usual > 0 else 0.0


def _episodes(evidence: Evidence) -> list[Mapping[str, Any]]:
    """Return where the norm that the program itself records, as it clips, leaves its level, as events would tell it."""
    track = evidence.track("grad_norm")
    norm = track.finite() if track is not None else None
    if norm is None or len(norm) < ROLLING:
        return []
    level = _level(norm.value, ROLLING)
    high = (norm.value > EXPLODED * level) & (level > 0)
    first = np.flatnonzero(high & ~np.concatenate([[False], high[:-1]]))
    return [
        {
            "name": "grad_norm",
            "step": int(norm.step[at]),
            "value": float(norm.value[at]),
            "compared": float(level[at]),
            "cause": f"the norm is {norm.value[at] / level[at]:.3g} times its usual value of {level[at]:.3g}",
        }
        for at in first
    ]


def _follows(event: Mapping[str, Any], loss: Track | None) -> bool:
    """Return whether a gradient is large because the loss of its step is: no explosion, but a batch that is far off."""
    norm, usual, step = (event.get(key) for key in ("value", "compared", "step"))
    if loss is None or not isinstance(step, int) or not isinstance(norm, float) or not usual:
        return False
    at = int(np.searchsorted(loss.step, step))
    before = loss.value[max(0, at - NEAR) : at]
    here = loss.value[at : at + 2]
    if len(before) < NEAR // 2 or not len(here) or float(np.median(before)) <= 0:
        return False
    return norm / float(usual) <= FOLLOWS * float(here.max()) / float(np.median(before))


def _layers(evidence: Evidence) -> Iterator[Finding]:
    """Yield layers that get next to no gradient, or none, though others do: the norm of all hides them."""
    looks = evidence.of_kind("gradient_layers")
    thin = [one for one in looks if isinstance(one.get("ratio"), float) and one["ratio"] < THIN]
    dead = [one for one in looks if one.get("weights") and one.get("zero", 0) >= MOSTLY_DEAD * one["weights"]]
    told = {one.get("kind") for one in evidence.of_kind(*GRADIENTS)}
    if len(thin) >= FEWEST_LOOKS and len(thin) > len(looks) / 2 and "vanishing_gradient" not in told:
        last = thin[-1]
        text = (
            f"the gradient of {last.get('layer') or 'a layer'} is {last['ratio']:.1g} of the strongest layer's gradient"
        )
        facts = {key: last.get(key) for key in ("layer", "ratio", "weakest", "strongest", "step")} | {
            "looks": len(thin)
        }
        yield Finding("vanishing_gradients", text, WARNING, remedy("vanishing_gradients"), facts, confidence=0.9)
    if len(dead) >= FEWEST_LOOKS and len(dead) > len(looks) / 2 and "dead_gradient" not in told:
        last = dead[-1]
        text = f"{last['zero']} of {last['weights']} weights have a gradient of exactly zero"
        facts = {key: last.get(key) for key in ("zero", "weights", "step")} | {"looks": len(dead)}
        yield Finding("dead_gradients", text, WARNING, remedy("dead_gradients"), facts, confidence=0.9)


def _outgrows(evidence: Evidence, loss: Track | None) -> bool:
    """Return whether gradients grew beyond what a growing loss brings with it: they are its cause, not its effect.

    Where a model only fits worse, the gradient of a squared error grows as the root of the loss, of others less.
    """
    norm = evidence.track("grad_norm")
    if norm is None or loss is None or len(norm.finite()) < 10:
        return False
    before, after = (_grown(track.finite().value) for track in (norm, loss))
    return before > 0 and after > 0 and before > OUTGROWN * after


def _pushed(evidence: Evidence) -> bool:
    """Return whether the learning rate has grown many times over: then it is what drove the loss away."""
    rate = evidence.track("learning_rate")
    value = rate.finite().value if rate is not None else np.empty(0)
    half = value[: len(value) // 2]
    return bool(len(half)) and float(value[-1]) > PUSHED * float(np.median(half)) > 0


def _grown(values: Floats) -> float:
    """Return the logarithm of how many times a series has grown, from its usual level to its highest."""
    usual, highest = float(np.median(values[: max(5, len(values) // 2)])), float(np.quantile(values, 0.98))
    return float(np.log(highest / usual)) if usual > 0 and highest > usual else 0.0
