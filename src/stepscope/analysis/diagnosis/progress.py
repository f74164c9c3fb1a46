"""Does it learn: plateaus, overfitting, and learning rates that hinder it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare.quantity import is_loss, is_score
from stepscope.analysis.diagnosis.evidence import PARTS, course_of
from stepscope.analysis.finding import CRITICAL, WARNING, Finding
from stepscope.analysis.series.robust import median, spread
from stepscope.core.numbers import format_share, format_value
from stepscope.core.remedies import remedy
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence, Track
    from stepscope.core.arrays import Floats


HELD_OUT = re.compile(r"(^|[/_.])(val|valid|validation|eval|evaluation|test|dev|held_out)([/_.]|$)", re.IGNORECASE)
FEWEST, FEWEST_PART, FEWEST_STEPS = 40, 5, 150
"""Minimum values of a loss, values in its first and last third, and steps, to say that it does not fall."""
CERTAIN, FLAT = 3.0, 0.003
"""Progress must exceed this many standard errors, and this share of the level."""
FALLEN, BEGINNING = 0.03, 0.25
"""A fall of the loss by 3 % of its level in the first quarter of the values counts as learning."""
SEEN = 0.05
"""Largest fall between first and last third, as a share of the level, that noise may hide: beyond it nothing can be
said."""
NOISY = 0.15
"""Maximum noise of a loss, relative to its level: adversarial losses and rewards have more."""
FEWEST_LOOKS, ORDERED = 4, 0.7
"""Minimum evaluations; and the Kendall's tau from which they move steadily: chance gives it in 1 of 12 series of four,
and in 1 of 100 of seven."""
FEWEST_EVALUATIONS = 5
RISEN = 0.1
"""The model overfits if the evaluation loss rises this far above its best, relative to it."""
STALLED_RATE, STALLED_SHARE = 1e-3, 0.3
"""A learning rate below this share of its maximum counts as zero; and the maximum share of the run trained with it."""
JUMP, BEYOND = 5.0, 2.0
"""A jump multiplies the learning rate by 5 from one step to the next, to twice its highest value so far."""
PUSHED, GROWS = 5.0, 0.9
"""A learning rate broke the loss if it reached this many times its median in the first half, and this share of its
changes were not falls: a linear warm-up stays below the first."""
WARM_UP = 0.1
"""Share of the run, at its start, in which jumps of the learning rate are ignored."""
RISES = 0.1
"""Minimum rise of the loss after a jump, relative to the level before: with warm restarts it rises less."""
CYCLES, CYCLE_LOW, CYCLE_HIGH = 3, 0.005, 0.9
"""The rate oscillates if it falls this often from the last of these shares of its maximum to the second, and rises
slowly in between; intended cycles have a lowest rate that still trains."""


def progress(evidence: Evidence, *, broken: bool = False) -> Iterator[Finding]:
    """Yield what keeps a model from learning; for a broken model only a learning rate that broke it."""
    rates = list(_learning_rate(evidence, broken=broken))
    yield from rates
    if broken:
        return
    fitted = [one for name in evidence.series for one in _overfitted(evidence, name)]
    fitted.sort(key=lambda one: -float(one.evidence["last"]) / float(one.evidence["best"]))
    yield from fitted[:1]
    several = any(name.startswith("loss/") for name in evidence.series)  # adversarial losses balance each other
    if rates or fitted or several or _moves(evidence):
        return
    found = [list(_plateau(stage)) for stage in evidence.stages(evidence.finite("loss"))]
    yield from (found[-1] if all(found) else [])


def _moves(evidence: Evidence) -> bool:
    """Return whether any evaluation moves steadily: then the model learns, whatever its training loss does."""
    judged = [name for name in evidence.series if is_score(name) or (is_loss(name) and HELD_OUT.search(name))]
    return any(
        _goes_one_way(track.finite().value)
        for name in judged
        if unit_of(name) in ("", "ratio") and not name.startswith("mfu")
        for track in evidence.series[name].values()
    )


def _goes_one_way(value: Floats) -> bool:
    """Return whether values rise or fall overall, and not by chance."""
    means = np.array([part.mean() for part in np.array_split(value, min(len(value), PARTS))]) if len(value) else value
    if len(means) < FEWEST_LOOKS:
        return False
    pairs = np.sign(means[None, :] - means[:, None])[np.triu_indices(len(means), 1)]
    return abs(float(pairs.mean())) >= ORDERED


def _plateau(loss: Track) -> Iterator[Finding]:
    """Yield that a loss has not fallen at all. A loss that fell and then stays has converged, which is fine."""
    span = int(loss.step[-1] - loss.step[0]) if len(loss) else 0
    if len(loss) < FEWEST or span < FEWEST_STEPS or loss.step[0] > span:  # the last: a piece of a longer training
        return
    edges = loss.step[0] + span * np.array([1, 2]) / 3
    first, last = loss.value[loss.step <= edges[0]], loss.value[loss.step >= edges[1]]
    if min(len(first), len(last)) < FEWEST_PART:
        return
    begun, ended = median(first), median(last)
    rest = loss.value[int(BEGINNING * len(loss)) :]
    noise = float(np.std(rest))  # without the beginning: a fall there is progress, not noise
    error = noise * float(np.sqrt(1 / len(first) + 1 / len(last))) * 1.25
    if noise > NOISY * abs(begun) or CERTAIN * error > SEEN * abs(begun):
        return  # too noisy to tell
    if abs(ended - begun) > max(CERTAIN * error, FLAT * abs(begun)) or _fell_at_first(loss.value, rest):
        return  # a small but certain change is no plateau
    text = f"the loss has not fallen in {span} steps: "
    text += f"it was {begun:.4g} in the first third and is {ended:.4g} in the last"
    best = float(np.min(course_of(loss)[0]))
    facts = {"begin": begun, "last": ended, "best": best, "noise": noise, "range": loss.range}
    yield Finding("plateau", text, WARNING, remedy("plateau"), facts, confidence=0.75)


def _fell_at_first(value: Floats, rest: Floats) -> bool:
    """Return whether the first value, or the mean of the first few, clearly exceeds the level and noise of the rest."""
    level, noise = median(rest), float(np.std(rest))
    count = np.arange(1, int(BEGINNING * len(value)) + 1)
    above = np.cumsum(value[: len(count)]) / count - level
    return bool((above > np.maximum(FALLEN * abs(level), CERTAIN * noise / np.sqrt(count))).any())


def _overfitted(evidence: Evidence, name: str) -> Iterator[Finding]:
    """Yield that a loss on held-out data rises while the training loss falls."""
    if not name.endswith("loss") or not HELD_OUT.search(name):
        return
    held = evidence.finite(name)
    if len(held) < FEWEST_EVALUATIONS:
        return
    at = int(np.argmin(held.value))
    step, best, last = int(held.step[at]), float(held.value[at]), median(held.value[-3:])
    changes = np.abs(np.diff(held.value))
    noise, later = spread(changes - median(changes)), held.value[at:]
    rises = len(later) >= 3 and float((np.diff(later) > 0).mean()) >= 0.6
    if best <= 0 or last < best * (1 + RISEN) or last - best < 3 * noise or not rises:
        return
    training = evidence.track("loss")
    if training is not None and not _falls(training.finite(), step):
        return
    text = f"{name} rose from {best:.4g} at step {step} to {last:.4g}"
    text += " while the training loss kept falling" if training is not None else ""
    facts = {"metric": name, "best": best, "last": last, "step": step, "range": [step, int(held.step[-1])]}
    yield Finding("overfitting", text, WARNING, remedy("overfitting", step=step), facts, confidence=0.85)


def _falls(loss: Track, since: int) -> bool:
    """Return whether a loss kept falling, or stayed low, after a step."""
    before, after = loss.value[loss.step <= since], loss.value[loss.step > since]
    if len(before) < 3 or len(after) < 3:
        return True
    return median(after[-max(3, len(after) // 5) :]) <= median(before[-max(3, len(before) // 5) :])


def _learning_rate(evidence: Evidence, *, broken: bool) -> Iterator[Finding]:
    """Yield problems of the schedule: a rate near zero, a jump, or an oscillation."""
    rate = evidence.finite("learning_rate")
    if len(rate) < FEWEST_EVALUATIONS:
        return
    if broken:
        yield from list(_jump(evidence, rate, broken=True)) or _grown(evidence, rate)
        return
    highest = float(rate.value.max())
    if highest <= 0:
        text = f"the learning rate is {highest:g} throughout: the model cannot learn"
        yield _rate(text, {"highest": highest, "range": rate.range}, "zero", 0.95)
        return
    decayed = _decayed(rate, highest)
    yield from [decayed] if decayed is not None else (*_swing(rate, highest), *_jump(evidence, rate, broken=False))


def _decayed(rate: Track, highest: float) -> Finding | None:
    """Return that a schedule has reduced the learning rate to almost nothing long before the end."""
    span = float(rate.step[-1] - rate.step[0])
    last = int(np.flatnonzero(rate.value > STALLED_RATE * highest)[-1])
    end = int(rate.step[min(len(rate) - 1, last + 1)])
    share = float(rate.step[-1] - end) / span if span > 0 else 0.0
    if share <= STALLED_SHARE:
        return None
    text = f"the learning rate fell below {format_value(STALLED_RATE, 'ratio')} of its highest value ({highest:.3g}) "
    text += f"at step {end}: the last {format_share(share)} of the steps have no effect"
    facts = {"step": end, "share": share, "highest": highest, "range": [end, int(rate.step[-1])]}
    return _rate(text, facts, "zero", 0.9)


def _rate(text: str, facts: dict[str, Any], cause: str, confidence: float, severity: str = WARNING) -> Finding:
    advice, shown = remedy("learning_rate", cause, **facts), facts | ({"cause": cause} if cause else {})
    return Finding("learning_rate", text, severity, advice, shown, confidence=confidence)


def _swing(rate: Track, highest: float) -> Iterator[Finding]:
    """Yield a cosine schedule for epochs that is stepped with every batch: it swings again and again."""
    low, high = rate.value < CYCLE_LOW * highest, rate.value > CYCLE_HIGH * highest
    marks = np.where(high, 1, np.where(low, -1, 0))
    turns = marks[marks != 0]
    down = int(((turns[1:] == -1) & (turns[:-1] == 1)).sum()) if len(turns) > 1 else 0
    rises = np.diff(rate.value)
    if down >= CYCLES and len(rises) and float(rises.max()) < 0.5 * highest:
        text = f"the learning rate oscillates between {highest:.3g} and nearly 0, {down} times: "
        text += "the schedule is stepped too often"
        yield _rate(text, {"cycles": down, "highest": highest, "range": rate.range}, "", 0.85)


def _grown(evidence: Evidence, rate: Track) -> Iterator[Finding]:
    """Yield a learning rate that kept growing until the loss broke: a reversed schedule, or one without an end."""
    loss, course = evidence.track("loss"), evidence.finite("loss")
    if loss is None or len(course) < FEWEST_PART:
        return
    broke = int(loss.step[~np.isfinite(loss.value)][0]) if len(course) < len(loss) else int(course.step[-1])
    until = rate.value[rate.step <= broke]
    if len(until) < FEWEST_EVALUATIONS:
        return
    usual, last = median(until[: max(1, len(until) // 2)]), float(until[-1])
    if not 0 < PUSHED * usual < last or last < float(until.max()) / 2 or float((np.diff(until) >= 0).mean()) < GROWS:
        return
    lowest = int(np.argmin(course.value))
    step, then = int(course.step[lowest]), rate.value[rate.step <= course.step[lowest]]
    text = f"the learning rate grew from {until[0]:.3g} to {last:.3g}; the loss was lowest "
    text += f"({course.value[lowest]:.4g}) at step {step}" + (f", with a rate of {then[-1]:.3g}" if len(then) else "")
    facts = {"step": step, "first": float(until[0]), "last": last, "range": rate.range}
    yield _rate(text, facts, "grows", 0.85, CRITICAL)


def _jump(evidence: Evidence, rate: Track, *, broken: bool) -> Iterator[Finding]:
    """Yield a learning rate that jumps up, after which the loss is higher than before or not finite."""
    before, after = rate.value[:-1], rate.value[1:]
    highest = np.maximum.accumulate(before)  # a warm restart goes back to where the rate was, not beyond
    jumps = np.flatnonzero((after > JUMP * before) & (after > BEYOND * highest) & (before > 0))
    jumps = jumps[jumps >= WARM_UP * len(rate)]
    loss = evidence.track("loss")
    if not len(jumps) or loss is None:
        return
    at = int(jumps[0]) + 1
    step = int(rate.step[at])
    earlier = loss.finite().value[loss.finite().step < step][-20:]
    later = loss.value[loss.step >= step][1:21]
    if len(earlier) < 5 or len(later) < 3:
        return
    usual, level = median(earlier), median(np.where(np.isfinite(later), later, np.inf))
    if level < usual + RISES * abs(usual):
        return
    became = f"{level:.4g}" if np.isfinite(level) else "NaN"
    text = f"the learning rate jumped from {rate.value[at - 1]:.3g} to {rate.value[at]:.3g} at step {step}, "
    text += f"and the loss from {usual:.4g} to {became}"
    facts = {"step": step, "range": [max(0, step - 50), step + 50]}
    yield _rate(text, facts, "jump", 0.9, CRITICAL if broken else WARNING)
