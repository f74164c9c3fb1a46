"""Findings about learning: non-finite values, divergence, spikes, plateaus, gradients, learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.evidence import course_of
from stepscope.analysis.diagnosis.progress import PUSHED, progress
from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.analysis.series.rises import begun_at, comes_down, lasting_rise, rise_text
from stepscope.analysis.series.robust import median
from stepscope.analysis.series.rolling import moving_median
from stepscope.analysis.series.spikes import spikes
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.analysis.diagnosis.evidence import Evidence, Track
    from stepscope.analysis.series.spikes import Spike
    from stepscope.core.arrays import Floats


FEWEST = 40
"""Minimum values of a loss to judge its course."""
LEARNED, LOST = 0.7, 0.9
"""Progress is lost if the loss had fallen below the first share of its start, and ends above the second."""
LASTING = 3
"""Parts at the end, of twenty, in which a diverged loss must be high."""
BACK, MOST_BACK = 0.25, 0.1
"""A loss below this share of its rise has recovered; and the share of the last values that may have, at most."""
GRADIENTS = {
    "exploding_gradient": "exploding_gradients",
    "vanishing_gradient": "vanishing_gradients",
    "dead_gradient": "dead_gradients",
}
OUTGROWN = 0.7
"""Gradients are the cause if their logarithmic growth is at least this share of that of the loss."""
CALM_VALUES, CALM_REACH, SUDDEN = 3, 0.1, 1.5
"""In a short series a value this many times the median is a spike, if at least so many values before it have a range
below this share of their median."""
THIN, MOSTLY_DEAD, FEWEST_LOOKS = 1e-6, 0.5, 2
"""A layer's gradient has vanished below this share of the strongest layer's, per element (healthy: 0.001 to 0.2);
gradients are dead if this share of the weights has none; and the minimum measurements that show it."""
MOST_SPIKES = 0.02
"""If more than this share of the values are spikes, they are normal for this loss."""
ROLLING, CLEAR = 41, 3.0
"""Width of the moving median; a spike must be this many times the 99th percentile of the other distances from it."""
SURVIVED, MOST_LEFT_OUT = 20, 0.1
"""Non-finite gradients did no harm if so many finite losses follow; and the maximum share of such gradients."""
NEAR, FOLLOWS = 20, 3.0
"""Previous losses that are the level at a large gradient; and how many times more than the loss the gradient may grow
and still be explained by it."""
EXPLODED, EXPLOSIONS, VIOLENT, FEW_EXPLOSIONS = 10.0, 3, 100.0, 2
"""A norm has exploded at 10 times its level; a finding needs three explosions, as a single one is a hard batch, or two
at 100 times the level."""


def learning(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings about loss, gradients and learning rate."""
    loss = evidence.finite("loss")
    stages = evidence.stages(loss)
    broken = list(_non_finite(evidence))
    diverged = [one for stage in stages if len(stage) >= FEWEST for one in _diverged(stage)][:1]
    ruined = [one for one in (*broken, *diverged) if one.severity == CRITICAL]
    weak = list(_gradients(evidence, ruined[0] if ruined else None, loss))
    weak += [] if broken else list(_layers(evidence))
    later = list(progress(evidence, broken=bool(ruined)))
    if any(one.kind in ("vanishing_gradients", "dead_gradients") for one in weak):
        later = [one for one in later if one.kind != "plateau"]  # it follows from them
    yield from (*broken, *diverged, *weak, *later)
    if not ruined:
        jumps = [one.evidence["step"] for one in later if one.evidence.get("cause") == "jump"]
        explained = bool(jumps) or any(one.kind == "exploding_gradients" for one in weak)
        yield from _sudden_rise(stages, min(jumps, default=math.inf)) or ([] if explained else _risen(stages[-1]))


def _sudden_rise(stages: list[Track], jumped: float) -> list[Finding]:
    """Return the first sudden rise of the loss before the step at which the learning rate jumped."""
    found = [one for stage in stages for one in (_spikes(stage) if len(stage) >= FEWEST else _sudden(stage))]
    return [one for one in found if one.evidence["step"] < jumped][:1]


def _risen(loss: Track) -> Iterator[Finding]:
    """Yield a rise that lasts until now, with the text of the alert."""
    rise = lasting_rise(loss.value)
    if rise is None:
        return
    severity = CRITICAL if rise.is_divergence(begun_at(loss.value)) else WARNING
    yield _divergence(loss, rise.before, rise.now, rise.index, severity, 0.8)


def _divergence(loss: Track, best: float, last: float, at: int, severity: str, confidence: float) -> Finding:
    step = int(loss.step[at])
    facts = {"best": best, "last": last, "step": step, "range": [step, int(loss.step[-1])]}
    text, advice = rise_text("loss", best, last, step), remedy("divergence", step=step)
    return Finding("divergence", text, severity, advice, facts, confidence=confidence)


def _non_finite(evidence: Evidence) -> Iterator[Finding]:
    """Yield the first non-finite value of the training; it is a remark if only gradients were, and did no harm."""
    found = sorted(_first_non_finite(evidence))
    if not found:
        return
    _, name, step, rank = found[0]
    loss = evidence.track("loss")
    facts: dict[str, Any] = {"first": name, "step": step}
    if all("grad" in one[1] for one in found) and _harmless(evidence, loss):
        cause, severity, confidence = "gradient", INFO, 0.7
        text = f"{name} was not finite at step {step}; the loss stayed finite, so that update was skipped"
    else:
        cause, severity, confidence = "", CRITICAL, 0.97
        share = float((~np.isfinite(loss.value)).mean()) if loss is not None and len(loss) else None
        text = f"{name} is not finite from step {step} on" if share else f"{name} was not finite at step {step}"
        facts["loss_share"] = share
    facts["range"] = [max(0, step - 20), step + 20]
    advice = remedy("non_finite", cause, step=step)
    owner = rank if rank >= 0 else None
    yield Finding("non_finite", text, severity, advice, facts, confidence=confidence, rank=owner)


def _first_non_finite(evidence: Evidence) -> Iterator[tuple[float, str, int, int]]:
    """Yield time, name, step and rank of the first non-finite value of each metric, and of each gradient event."""
    for name, by_rank in evidence.series.items():
        for rank, track in by_rank.items() if _is_trained(name) else ():
            bad = np.flatnonzero(~np.isfinite(track.value))
            if len(bad):
                yield float(track.time[bad[0]]), name, int(track.step[bad[0]]), rank
    for event in evidence.of_kind("nonfinite_gradient"):
        name = f"gradient {event.get('name', '')}".strip()
        yield float(event["time"]), name, int(event.get("step") or 0), int(event.get("rank") or 0)


def _harmless(evidence: Evidence, loss: Track | None) -> bool:
    """Return whether the loss stayed finite long after non-finite gradients, because their updates were skipped.

    A gradient scaler for mixed precision tries larger and larger scales, and skips the steps where one is too large.
    """
    if loss is None or not np.isfinite(loss.value).all():
        return False
    last = max((float(event["time"]) for event in evidence.of_kind("nonfinite_gradient")), default=0.0)
    for name, by_rank in evidence.series.items():
        for track in by_rank.values() if _is_trained(name) and "grad" in name else ():
            bad = ~np.isfinite(track.value)
            if float(bad.mean()) > MOST_LEFT_OUT:
                return False
            last = max(last, float(track.time[bad][-1])) if bad.any() else last
    return int((loss.time > last).sum()) >= SURVIVED


def _is_trained(name: str) -> bool:
    """Return whether a metric must be finite for the training to work: a loss, a gradient norm or the like."""
    last = name.rsplit("/", 1)[-1]
    known = last.endswith("loss") or last in ("grad_norm", "perplexity", "objective")
    return known or name.startswith(("grad_norm", "loss"))


def _diverged(loss: Track) -> Iterator[Finding]:
    """Yield a loss that diverged for good: far above its best, and above its start; as in the alert, if it fired."""
    level, noise = course_of(loss)
    lowest = int(np.argmin(level))
    best, begun = float(level[lowest]), float(np.median(loss.value[: max(3, len(loss) // 50)]))
    last = float(min(level[-2:]))  # both of the last parts
    rise = last - best
    if lowest >= len(level) - 2 or rise <= 6 * max(float(np.median(noise)), 1e-9):
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
        return  # it rises and falls, as where the targets are learned, too
    low = np.flatnonzero(below)
    at = min(len(loss) - 1, int(low[-1]) + 1) if len(low) else 0
    if not comes_down(loss.value[at:], rise):  # else it is learning a harder stage
        newest = [one for one in _risen(loss) if one.severity == CRITICAL]
        yield from newest or [_divergence(loss, best, last, at, CRITICAL, 0.9)]


def _clear(loss: Track) -> list[Spike]:
    """Return the spikes that exceed everything else in the whole series, highest first.

    The losses of reinforcement learning and of adversarial training have heavy tails, in which every detector that only
    knows the past finds spikes.
    """
    found = spikes(loss.value).spikes
    if not found or len(found) > MOST_SPIKES * len(loss):
        return []
    away = np.abs(loss.value - moving_median(loss.value, min(ROLLING, len(loss) // 4 * 2 + 1)))
    calm = np.ones(len(loss), bool)
    for one in found:
        calm[max(0, one.index - 1) : one.end + 2] = False
    reach = float(np.quantile(away[calm], 0.99)) if calm.any() else 0.0
    return sorted((one for one in found if one.top - one.level >= CLEAR * reach), key=lambda one: -one.height)


def _spikes(loss: Track) -> Iterator[Finding]:
    found = _clear(loss)
    if not found:
        return
    one, steps = found[0], [int(loss.step[each.index]) for each in found]
    more = (
        "" if len(found) == 1 else "; one more such jump" if len(found) == 2 else f"; {len(found) - 1} more such jumps"
    )
    falls = not one.recovered and comes_down(loss.value[one.peak :], one.top - one.level)
    back = "and came back" if one.recovered else "and is coming down again" if falls else "and has not come back"
    text = f"the loss jumped from {one.level:.4g} to {one.top:.4g} at step {steps[0]}, {back}{more}"
    facts = {"step": steps[0], "steps": sorted(steps)[:20], "height": one.height, "level": one.level, "top": one.top}
    facts["range"] = [max(0, steps[0] - 50), steps[0] + 50]
    severity = WARNING if one.recovered or falls else CRITICAL
    yield Finding("loss_spike", text, severity, remedy("loss_spike", step=steps[0]), facts, confidence=0.85)


def _sudden(loss: Track) -> Iterator[Finding]:
    """Yield an obvious rise of a loss with few values."""
    for at in range(CALM_VALUES, len(loss)):
        before, top = loss.value[max(0, at - 10) : at], float(loss.value[at])
        level, reach = median(before), float(before.max() - before.min())
        if level > 0 and top > SUDDEN * level and reach < CALM_REACH * level:
            step = int(loss.step[at])
            text = f"the loss jumped from {level:.4g} to {top:.4g} at step {step}"
            facts = {"step": step, "level": level, "top": top, "range": [int(loss.step[0]), step + 50]}
            yield Finding("loss_spike", text, WARNING, remedy("loss_spike", step=step), facts, confidence=0.75)
            return


def _gradients(evidence: Evidence, broken: Finding | None, loss: Track) -> Iterator[Finding]:
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in evidence.of_kind(*GRADIENTS):
        by_kind.setdefault(str(event["kind"]), []).append(event)
    if broken is None:
        every = by_kind.get("exploding_gradient") or _explosions(evidence)
        by_kind["exploding_gradient"] = alone = [one for one in every if not _follows(one, loss)]
        if len(alone) < EXPLOSIONS and sum(_growth(one) >= VIOLENT for one in alone) < FEW_EXPLOSIONS:
            del by_kind["exploding_gradient"]
    for kind, events in by_kind.items():
        first, name = events[0], GRADIENTS[kind]
        text = f"{first.get('name', 'grad_norm')} at step {first.get('step')}: {first.get('cause', '')}"
        facts = {key: first.get(key) for key in ("step", "value", "compared")} | {"times": len(events)}
        severity, confidence = WARNING, 0.9 if len(events) > 1 or kind != "exploding_gradient" else 0.7
        if broken is not None and broken.kind == "divergence" and _are_cause(evidence, loss):
            severity, confidence = CRITICAL, 0.9
        advice = remedy(name, step=first.get("step"))
        yield Finding(name, text, severity, advice, facts, confidence=confidence, rank=first.get("rank"))


def _growth(event: Mapping[str, Any]) -> float:
    """Return how many times its usual value a gradient is; 0 if unknown."""
    norm, usual = event.get("value"), event.get("compared")
    return float(norm) / float(usual) if isinstance(norm, float) and isinstance(usual, float) and usual > 0 else 0.0


def _explosions(evidence: Evidence) -> list[Mapping[str, Any]]:
    """Return where the gradient norm that the program logs leaves its level, in the form of gradient events."""
    norm = evidence.finite("grad_norm")
    if len(norm) < ROLLING:
        return []
    level = moving_median(norm.value, ROLLING)
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


def _follows(event: Mapping[str, Any], loss: Track) -> bool:
    """Return whether a gradient is large because the loss of its step is: a hard batch, not an explosion."""
    norm, usual, step = (event.get(key) for key in ("value", "compared", "step"))
    if not isinstance(step, int) or not isinstance(norm, float) or not usual:
        return False
    at = int(np.searchsorted(loss.step, step))
    before, here = loss.value[max(0, at - NEAR) : at], loss.value[at : at + 2]
    if len(before) < NEAR // 2 or not len(here) or median(before) <= 0:
        return False
    return norm / float(usual) <= FOLLOWS * float(here.max()) / median(before)


def _layers(evidence: Evidence) -> Iterator[Finding]:
    """Yield layers with almost no gradient, or none, though others have some: the norm of all layers hides them."""
    looks = evidence.of_kind("gradient_layers")
    thin = [one for one in looks if isinstance(one.get("ratio"), float) and one["ratio"] < THIN]
    dead = [one for one in looks if one.get("weights") and one.get("zero", 0) >= MOSTLY_DEAD * one["weights"]]
    reported = {one.get("kind") for one in evidence.of_kind(*GRADIENTS)}
    for event, some, keys in (
        ("vanishing_gradient", thin, ("layer", "ratio", "weakest", "strongest", "step")),
        ("dead_gradient", dead, ("zero", "weights", "step")),
    ):
        if event in reported or len(some) < FEWEST_LOOKS or len(some) <= len(looks) / 2:
            continue
        kind, last = GRADIENTS[event], some[-1]
        text = f"{last.get('zero')} of {last.get('weights')} weights have a gradient of exactly zero"
        if some is thin:
            layer = last.get("layer") or "a layer"
            text = f"the gradient of {layer} is {last['ratio']:.1g} of the strongest layer's gradient"
        facts = {key: last.get(key) for key in keys} | {"looks": len(some)}
        yield Finding(kind, text, WARNING, remedy(kind), facts, confidence=0.9)


def _are_cause(evidence: Evidence, loss: Track) -> bool:
    """Return whether gradients grew more than a growing loss explains, and no growing learning rate drove the loss.

    Where a model only fits worse, the gradient of a squared error grows as the root of the loss, of others less.
    """
    norm, rate = evidence.finite("grad_norm").value, evidence.finite("learning_rate").value
    if len(norm) < 10 or not len(loss):
        return False
    early = rate[: len(rate) // 2]
    if len(early) and float(rate[-1]) > PUSHED * median(early) > 0:
        return False
    of_norm, of_loss = _log_growth(norm), _log_growth(loss.value)
    return of_norm > 0 and of_loss > 0 and of_norm > OUTGROWN * of_loss


def _log_growth(values: Floats) -> float:
    """Return the logarithm of the growth of a series from its usual level to its highest."""
    usual, highest = median(values[: max(5, len(values) // 2)]), float(np.quantile(values, 0.98))
    return float(np.log(highest / usual)) if usual > 0 and highest > usual else 0.0
