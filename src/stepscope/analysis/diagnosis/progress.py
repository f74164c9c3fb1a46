"""Does it learn: plateaus, overfitting, and learning rates that hinder it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare.quantity import is_loss, is_score
from stepscope.analysis.diagnosis.evidence import PARTS, course_of
from stepscope.analysis.finding import CRITICAL, WARNING, Finding
from stepscope.core.numbers import format_share, format_value
from stepscope.core.remedies import remedy
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence, Track
    from stepscope.core.arrays import Floats


HELD_OUT = re.compile(r"(^|[/_.])(val|valid|validation|eval|evaluation|test|dev|held_out)([/_.]|$)", re.IGNORECASE)
FEWEST, FEWEST_PART, FEWEST_STEPS = 40, 5, 150
"""Values of a loss, in all and in its first and last third, and steps, below which nobody can say that it does not
fall."""
FALLEN = 0.03
"""Fall of the loss, relative to where it began, below which nothing was learned."""
CERTAIN, FLAT = 3.0, 0.003
"""Standard errors, and share of the level, by which first and last third, or the first values and the rest, must differ
to count as progress."""
BEGINNING = 0.25
"""Share of the values in which a fall at the beginning is sought."""
SEEN = 0.05
"""Share of the level that a fall between first and last third may have at most to stay unseen in the noise: where more
would, nobody can say that nothing was learned."""
NOISY = 0.15
"""Spread of a loss, relative to its level, beyond which no finding is made: adversaries, rewards."""
FEWEST_LOOKS, ORDERED = 4, 0.7
"""Evaluations from which on their order tells something; and the surplus of pairs that go one way over those that go
the other (Kendall's tau) from which on they get better, or worse: by chance that happens to 1 of 12 series of four and
to 1 of 100 of seven."""
FEWEST_EVALUATIONS = 5
RISEN = 0.1
"""Rise of the evaluation's loss above its best, relative to it, from which on the model overfits."""
STALLED_RATE, STALLED_SHARE = 1e-3, 0.3
"""Learning rate, relative to its maximum, that counts as zero, and the share of the run trained with it."""
JUMP = 5.0
"""Times by which a learning rate may rise from one step to the next after the start without a word."""
BEYOND = 2.0
"""Times its highest so far that it must reach by that."""
PUSHED, GROWS = 5.0, 0.9
"""Times its median in the first half that a learning rate must have when the loss breaks to be the cause; and the share
of its changes that must not be falls: a warm-up that is linear stays below the first."""
WARM_UP = 0.1
"""Share of the run in which a learning rate may do what it wants."""
RISES = 0.1
"""Rise of the loss after a jump, relative to the level before, that makes it a fault: warm restarts rise less."""
CYCLES, CYCLE_LOW, CYCLE_HIGH = 3, 0.005, 0.9
"""Falls of the learning rate from the second share of its highest to the first, with a slow rise in between, that make
it swing; cycles that are meant have a lowest rate that still trains."""


def progress(evidence: Evidence, *, broken: bool = False) -> Iterator[Finding]:
    """Yield what keeps a model from learning; for a broken model only a learning rate that broke it."""
    rates = list(learning_rate(evidence, broken=broken))
    yield from rates
    if broken:
        return
    fitted = list(overfitting(evidence))
    yield from fitted
    loss = evidence.track("loss")
    several = len([name for name in evidence.series if name.startswith("loss/")])  # adversaries hold each other up
    if loss is None or rates or fitted or several or moves(evidence):
        return
    told = [list(plateau(stage)) for stage in evidence.stages(loss.finite())]
    yield from (told[-1] if all(told) else [])


def moves(evidence: Evidence) -> bool:
    """Return whether any evaluation moves steadily: then the model learns, regardless of its training loss."""
    judged = [name for name in evidence.series if is_score(name) or (is_loss(name) and HELD_OUT.search(name))]
    return any(
        _goes_one_way(track.finite().value)
        for name in judged
        if unit_of(name) in ("", "ratio") and not name.startswith("mfu")
        for track in evidence.series[name].values()
    )


def _goes_one_way(value: Floats) -> bool:
    """Return whether values rise, or fall, all in all, and not by chance."""
    means = np.array([part.mean() for part in np.array_split(value, min(len(value), PARTS))]) if len(value) else value
    if len(means) < FEWEST_LOOKS:
        return False
    pairs = np.sign(means[None, :] - means[:, None])[np.triu_indices(len(means), 1)]
    return abs(float(pairs.mean())) >= ORDERED


def plateau(loss: Track) -> Iterator[Finding]:
    """Yield that a loss has not fallen at all. A loss that fell and then stays has converged, which is fine."""
    span = int(loss.step[-1] - loss.step[0]) if len(loss) else 0
    if len(loss) < FEWEST or span < FEWEST_STEPS or loss.step[0] > span:  # the last: a piece of a longer training
        return
    edges = loss.step[0] + span * np.array([1, 2]) / 3
    first, last = loss.value[loss.step <= edges[0]], loss.value[loss.step >= edges[1]]
    if min(len(first), len(last)) < FEWEST_PART:
        return
    begun, ended = float(np.median(first)), float(np.median(last))
    rest = loss.value[int(BEGINNING * len(loss)) :]
    spread = float(np.std(rest))  # without the beginning: a fall there is what is sought, and no noise
    error = spread * float(np.sqrt(1 / len(first) + 1 / len(last))) * 1.25
    if spread > NOISY * abs(begun) or CERTAIN * error > SEEN * abs(begun):
        return  # noise around nothing is how some losses are
    if abs(ended - begun) > max(CERTAIN * error, FLAT * abs(begun)) or _fell_at_first(loss.value, rest):
        return  # what falls or rises a little, surely, is none
    text = (
        f"the loss has not fallen in {span} steps: it was {begun:.4g} in the first third and is {ended:.4g} in the last"
    )
    best = float(np.min(course_of(loss)[0]))
    facts = {"begin": begun, "last": ended, "best": best, "noise": spread, "range": _range(loss)}
    yield Finding("plateau", text, WARNING, remedy("plateau"), facts, confidence=0.75)


def _fell_at_first(value: Floats, rest: Floats) -> bool:
    """Return whether the first value, or the mean of the first few, stands clear of the level and noise of the rest."""
    level, spread = float(np.median(rest)), float(np.std(rest))
    count = np.arange(1, int(BEGINNING * len(value)) + 1)
    above = np.cumsum(value[: len(count)]) / count - level
    return bool((above > np.maximum(FALLEN * abs(level), CERTAIN * spread / np.sqrt(count))).any())


def _range(track: Track) -> list[int]:
    return [int(track.step[0]), int(track.step[-1])]


def overfitting(evidence: Evidence) -> Iterator[Finding]:
    """Yield that the loss on held-out data rises while that on the training data falls; of several the worst."""
    told = [one for name in evidence.series for one in _overfitted(evidence, name)]
    yield from sorted(told, key=lambda one: -float(one.evidence["last"]) / float(one.evidence["best"]))[:1]


def _overfitted(evidence: Evidence, name: str) -> Iterator[Finding]:
    training, by_rank = evidence.track("loss"), evidence.series[name]
    if not name.endswith("loss") or not HELD_OUT.search(name) or not by_rank:
        return
    held = by_rank[min(by_rank)].finite()
    if len(held) < FEWEST_EVALUATIONS:
        return
    at = int(np.argmin(held.value))
    best, last = float(held.value[at]), float(np.median(held.value[-3:]))
    steps_apart = np.abs(np.diff(held.value))
    noise = 1.4826 * float(np.median(np.abs(steps_apart - np.median(steps_apart)))) if len(steps_apart) > 2 else 0.0
    later = held.value[at:]
    rises = len(later) >= 3 and float((np.diff(later) > 0).mean()) >= 0.6
    if best <= 0 or last < best * (1 + RISEN) or last - best < 3 * noise or not rises:
        return
    if training is not None and not _falls(training.finite(), int(held.step[at])):
        return
    step = int(held.step[at])
    text = f"{name} rose from {best:.4g} at step {step} to {last:.4g}"
    text += " while the training loss kept falling" if training is not None else ""
    facts = {"metric": name, "best": best, "last": last, "step": step, "range": [step, int(held.step[-1])]}
    yield Finding("overfitting", text, WARNING, remedy("overfitting", step=step), facts, confidence=0.85)


def _falls(loss: Track, since: int) -> bool:
    """Return whether a loss went on falling, or stayed low, after a step."""
    before, after = loss.value[loss.step <= since], loss.value[loss.step > since]
    if len(before) < 3 or len(after) < 3:
        return True
    return float(np.median(after[-max(3, len(after) // 5) :])) <= float(np.median(before[-max(3, len(before) // 5) :]))


def learning_rate(evidence: Evidence, *, broken: bool = False) -> Iterator[Finding]:
    """Yield problems of the schedule: a rate near zero, a jump, or an oscillation."""
    track = evidence.track("learning_rate")
    if track is None or len(track.finite()) < FEWEST_EVALUATIONS:
        return
    rate = track.finite()
    if broken:
        told = list(_jump(evidence, rate, broken=True))
        yield from told or _grown(evidence, rate)
        return
    highest = float(rate.value.max())
    if highest <= 0:
        text = f"the learning rate is {highest:g} throughout: the model cannot learn"
        yield _rate(text, {"highest": highest, "range": _range(rate)}, "zero", 0.95)
        return
    gone = _gone(rate, highest)
    if gone is not None:
        yield gone
        return
    yield from _swing(rate, highest)
    yield from _jump(evidence, rate)


def _gone(rate: Track, highest: float) -> Finding | None:
    """Return that a schedule has brought the learning rate to nothing long before the end."""
    span = float(rate.step[-1] - rate.step[0])
    last = int(np.flatnonzero(rate.value > STALLED_RATE * highest)[-1])
    end = int(rate.step[min(len(rate) - 1, last + 1)])
    share = float(rate.step[-1] - end) / span if span > 0 else 0.0
    if share <= STALLED_SHARE:
        return None
    text = f"the learning rate fell below {format_value(STALLED_RATE, 'ratio')} of its highest value ({highest:.3g}) "
    text += f"at step {end}: "
    text += f"the last {format_share(share)} of the steps have no effect"
    facts = {"step": end, "share": share, "highest": highest, "range": [end, int(rate.step[-1])]}
    return _rate(text, facts, "zero", 0.9)


def _rate(text: str, facts: dict[str, Any], cause: str, sure: float, severity: str = WARNING) -> Finding:
    told = facts | ({"cause": cause} if cause else {})
    return Finding("learning_rate", text, severity, remedy("learning_rate", cause, **facts), told, confidence=sure)


def _swing(rate: Track, highest: float) -> Iterator[Finding]:
    """Yield a cosine that was given the number of epochs and is stepped with every batch: it swings again and again."""
    low, high = rate.value < CYCLE_LOW * highest, rate.value > CYCLE_HIGH * highest
    marks = np.where(high, 1, np.where(low, -1, 0))
    turns = marks[marks != 0]
    down = int(((turns[1:] == -1) & (turns[:-1] == 1)).sum()) if len(turns) > 1 else 0
    rises = np.diff(rate.value)
    if down >= CYCLES and len(rises) and float(rises.max()) < 0.5 * highest:
        text = f"the learning rate oscillates between {highest:.3g} and nearly 0, {down} times: "
        text += "the schedule is stepped too often"
        yield _rate(text, {"cycles": down, "highest": highest, "range": _range(rate)}, "", 0.85)


def _grown(evidence: Evidence, rate: Track) -> Iterator[Finding]:
    """Yield a learning rate that grew and grew until the loss broke: a schedule turned round, or one without an end."""
    loss = evidence.track("loss")
    course = loss.finite() if loss is not None else None
    if loss is None or course is None or len(course) < FEWEST_PART:
        return
    broke = int(loss.step[~np.isfinite(loss.value)][0]) if len(course) < len(loss) else int(course.step[-1])
    until = rate.value[rate.step <= broke]
    if len(until) < FEWEST_EVALUATIONS:
        return
    usual, last = float(np.median(until[: max(1, len(until) // 2)])), float(until[-1])
    if not 0 < PUSHED * usual < last or last < float(until.max()) / 2 or float((np.diff(until) >= 0).mean()) < GROWS:
        return
    lowest = int(np.argmin(course.value))
    text = f"the learning rate grew from {until[0]:.3g} to {last:.3g}; the loss was lowest "
    at = rate.value[rate.step <= course.step[lowest]]
    text += f"({course.value[lowest]:.4g}) at step {course.step[lowest]}" + (
        f", with a rate of {at[-1]:.3g}" if len(at) else ""
    )
    facts = {"step": int(course.step[lowest]), "first": float(until[0]), "last": last, "range": _range(rate)}
    yield _rate(text, facts, "grows", 0.85, CRITICAL)


def _jump(evidence: Evidence, rate: Track, *, broken: bool = False) -> Iterator[Finding]:
    """Yield a learning rate that rises at once, after which the loss is higher than before, or no number any more."""
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
    level = float(np.median(np.where(np.isfinite(later), later, np.inf)))
    if level < float(np.median(earlier)) + RISES * abs(float(np.median(earlier))):
        return
    became = f"{level:.4g}" if np.isfinite(level) else "NaN"
    text = f"the learning rate jumped from {rate.value[at - 1]:.3g} to {rate.value[at]:.3g} at step {step}, "
    text += f"and the loss from {np.median(earlier):.4g} to {became}"
    facts = {"step": step, "range": [max(0, step - 50), step + 50]}
    yield _rate(text, facts, "jump", 0.9, CRITICAL if broken else WARNING)
