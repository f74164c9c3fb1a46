"""Findings from the metrics of a GRPO training: rewards, groups, divergence, answers.

The names are those of TRL's trainer, of verl, of `GRPOMetricsTracker` and of some home-made logs. A run without a
reward is no such training and has no findings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import CRITICAL, WARNING, Finding
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.arrays import Floats


HUGE = 1e100
"""Larger values are ignored like NaN."""
ENOUGH = 10
"""Minimum values of a metric."""
MANY = 40
"""Minimum values to say that a reward stands still: enough for the 50 steps of grpo-rookworld, too many for 20 noisy
ones."""
FLAT_GROUPS, MOST_FLAT_GROUPS = 0.3, 0.7
"""Share of groups without variance that is a warning, and that is critical. In grpo-rookworld 1324 one prompt of four
has four equal answers at every step, which is not reported."""
DOMINATES = 0.9
"""Share of the reward's variation from which one component decides alone."""
STILL = 1e-3
"""Smaller variation, relative to the reward, counts as none."""
KL_GROWTH, KL_LARGE = 5.0, 0.2
"""A divergence runs away if it is this many times that of the first third, and at least so large."""
KL_SHARE = 0.8
"""Share of the loss from which the KL penalty drowns the reward: 0.88 in grpo-rookworld 1324, whose authors say so in
their log, 0.38 in 1950."""
LENGTH_RATIO = 2.0
"""Answers have drifted if they are this many times as long, or as short, as at the beginning."""
CLIPPED = 0.3
"""Share of answers cut at the limit that is reported."""
ENTROPY_FALL, ENTROPY_RISE = 0.2, 3.0
"""The entropy has drifted below, or above, so many times that of the beginning."""
INVALID, MOSTLY_INVALID = 0.2, 0.5
"""Share of invalid answers that is a warning, and that is critical."""

REWARD = ("reward", "critic/rewards/mean", "critic/score/mean", "mean_reward", "train/reward", "table/pre")
FLAT = ("frac_reward_zero_std", "zero_variance_ratio", "train/frac_reward_zero_std")
SPREAD = ("reward_std", "train/reward_std")
KL = (
    *("kl", "kl_divergence", "actor/kl_loss", "actor/reward_kl_penalty", "critic/kl", "objective/kl", "train/kl"),
    *("table/kl", "kl_loss_(with_gradients)"),
)
"""The divergence from the reference model. That from the policy before the update (verl's `actor/ppo_kl`, `approx_kl`)
is another quantity with other limits."""
PENALTY = ("kl_penalty_ratio", "table/kl%")
LENGTH = (
    *("completions/mean_length", "completion_length", "response_length/mean", "response_length", "completions/length"),
    "train/completions/mean_length",
)
CUT = ("completions/clipped_ratio", "response_length/clip_ratio", "train/completions/clipped_ratio")
ENTROPY = ("entropy", "actor/entropy", "actor/entropy_loss", "train/entropy", "policy_entropy")
WRONG = ("invalid_ratio", "invalid_rate", "invalid_answers_ratio")
COMPONENT = re.compile(r"(?:train/)?rewards?/(?P<name>[^/].*?)(?:/mean)?")
COMPONENT_SPREAD = "/std"

REMEDIES = {
    "reward_zero_variance": "drop prompts whose answers all get the same reward, raise the temperature, sample more "
    "answers per prompt, or use a finer-grained reward",
    "reward_component": "scale the components of the reward to similar ranges, or drop components that do not vary",
    "kl_runaway": "raise beta, lower the learning rate, or update the reference model",
    "kl_dominates": "lower beta, or increase it gradually from 0",
    "kl_negative": "use an estimator that cannot be negative (ratio - log ratio - 1), and check the order in "
    "which the log probabilities are subtracted",
    "length_drift": "penalize overlong answers, normalize the loss by a fixed length, and look at some answers",
    "entropy_drift": "if it falls, raise the temperature, add an entropy bonus or clip the upper side wider; "
    "if it rises, lower the learning rate",
    "invalid_answers": "look at some invalid answers: reward the format, allow longer answers, or fix the verifier",
    "reward_flat": "check that the reward can be reached from here: rewards of single groups, size of the gradient, "
    "learning rate and beta",
}
"""What to do, by kind."""
KINDS = {
    "reward_zero_variance": "the answers of many groups all get the same reward",
    "reward_component": "one part of the reward decides alone",
    "kl_runaway": "the policy runs away from its reference",
    "kl_dominates": "the penalty on divergence drowns the reward",
    "kl_negative": "the estimated divergence is below zero",
    "length_drift": "answers grow, shrink, or are cut",
    "entropy_drift": "the policy's entropy collapses or explodes",
    "invalid_answers": "many answers are invalid",
    "reward_flat": "the reward has not risen",
}
"""The kinds of findings in this module."""


def findings(curves: Mapping[str, Floats]) -> list[Finding]:
    """Return the findings about a GRPO training, most severe first; empty for any other run.

    Args:
        curves: values of each metric of one rank, in the order of their steps; NaN is absent.
    """
    known = {name: value[np.abs(value) < HUGE] for name, value in curves.items() if value.dtype == np.float64}
    if _first(known, REWARD) is None and _first(known, FLAT) is None:
        return []
    found = {one.kind: one for one in (_flat_groups(known), _component(known)) if one is not None}
    for check, names in (
        *((_kl, KL), (_penalty, PENALTY), (_clipped, CUT), (_length, LENGTH)),
        *((_entropy, ENTROPY), (_invalid, WRONG), (_reward_flat, REWARD)),
    ):
        value = _first(known, names)
        one = check(value) if value is not None else None
        if one is not None:
            found.setdefault(one.kind, one)  # one finding about lengths: clipped answers come first
    return sorted(found.values(), key=lambda one: one.severity != CRITICAL)


def _first(known: Mapping[str, Floats], names: Sequence[str]) -> Floats | None:
    """Return the first of some metrics that has enough values."""
    return next((known[name] for name in names if name in known and len(known[name]) >= ENOUGH), None)


def _ends(value: Floats) -> tuple[float, float]:
    """Return the medians of the first and of the last fifth."""
    part = max(ENOUGH // 3, len(value) // 5)
    return float(np.median(value[:part])), float(np.median(value[-part:]))


def _finding(kind: str, text: str, severity: str = WARNING, confidence: float = 0.8, **evidence: object) -> Finding:
    return Finding(kind, text, severity, REMEDIES[kind], dict(evidence), confidence=confidence)


def _flat_groups(known: Mapping[str, Floats]) -> Finding | None:
    share, spread = _first(known, FLAT), _first(known, SPREAD)
    if share is None and spread is not None:
        share = (np.abs(spread) <= 1e-8).astype(np.float64)
    if share is None:
        return None
    late = share[len(share) // 2 :]
    mean = float(late.mean())
    if mean < FLAT_GROUPS:
        return None
    text = f"{format_share(mean)} of the groups have the same reward for all answers: "
    text += "the model learns nothing from them"
    severity = CRITICAL if mean >= MOST_FLAT_GROUPS else WARNING
    return _finding("reward_zero_variance", text, severity, 0.9, share=mean, at_first=float(share[: len(late)].mean()))


def _component(known: Mapping[str, Floats]) -> Finding | None:
    """Judge by the variation within batches if it is logged, else by how much each component moves over the run."""
    within: dict[str, float] = {}
    over: dict[str, float] = {}
    for name, value in known.items():
        match = COMPONENT.fullmatch(name.removesuffix(COMPONENT_SPREAD))
        if match is None or len(value) < ENOUGH:
            continue
        if name.endswith(COMPONENT_SPREAD):
            within[match["name"]] = float(np.mean(np.abs(value)))
        else:
            over[match["name"]] = float(np.std(value))
    spread = within if len(within) > 1 else over
    total = sum(spread.values())
    if len(spread) < 2 or not total > 0 or not _has_signal(known, total, within=len(within) > 1):
        return None
    name, most = max(spread.items(), key=lambda pair: pair[1])
    if most / total < DOMINATES:
        return None
    text = f"{name} causes {format_share(most / total)} of the variation of the reward; "
    text += f"the other {len(spread) - 1} hardly matter"
    shares = {part: value / total for part, value in sorted(spread.items())}
    return _finding("reward_component", text, component=name, shares=shares)


def _has_signal(known: Mapping[str, Floats], total: float, *, within: bool) -> bool:
    """Return whether the reward moves or differs between answers, so that its components matter."""
    reward = _first(known, REWARD)
    if reward is None:
        return True
    if within:
        return total > STILL * max(float(np.abs(reward).mean()), STILL)
    change, noise = _change(reward)
    return abs(change) > max(2 * noise, STILL * abs(float(reward.mean())))


def _change(value: Floats) -> tuple[float, float]:
    """Return by how much the mean of the last third exceeds that of the first, and its standard error."""
    third = max(1, len(value) // 3)
    first, last = value[:third], value[-third:]
    return float(last.mean() - first.mean()), float(np.sqrt(first.var() / third + last.var() / third))


def _kl(value: Floats) -> Finding | None:
    first, last = _ends(value)
    if float(np.mean(value < 0)) > 0.9:
        text = f"the divergence from the reference is estimated below zero throughout (median {np.median(value):.3g}): "
        text += "as a penalty it rewards moving away from the reference"
        return _finding("kl_negative", text, confidence=0.85, median=float(np.median(value)))
    early = float(np.median(value[max(1, len(value) // 20) : max(2, len(value) // 3)]))
    if last > KL_LARGE and last > KL_GROWTH * max(early, 1e-12):
        text = f"the divergence from the reference has grown from {early:.3g} to {last:.3g}"
        severity = CRITICAL if last > 10 * KL_LARGE * KL_GROWTH else WARNING
        return _finding("kl_runaway", text, severity, first=first, early=early, last=last)
    return None


def _penalty(value: Floats) -> Finding | None:
    share = float(np.median(value))
    share = share / 100 if share > 1 else share
    text = f"the KL penalty makes up {format_share(share)} of the loss: the reward hardly matters"
    return _finding("kl_dominates", text, confidence=0.85, share=share) if share >= KL_SHARE else None


def _clipped(value: Floats) -> Finding | None:
    last = _ends(value)[1]
    text = f"{format_share(last)} of the answers are cut at the limit"
    return _finding("length_drift", text, clipped=last) if last >= CLIPPED else None


def _length(value: Floats) -> Finding | None:
    first, last = _ends(value)
    if not first > 0 or 1 / LENGTH_RATIO < last / first < LENGTH_RATIO:
        return None
    word = "longer" if last > first else "shorter"
    text = f"answers have become {word}: {first:.0f} tokens at the start, {last:.0f} at the end"
    return _finding("length_drift", text, first=first, last=last)


def _entropy(value: Floats) -> Finding | None:
    first, last = _ends(value)
    if not first > 0 or ENTROPY_FALL < last / first < ENTROPY_RISE:
        return None
    text = f"the policy's entropy has {'fallen' if last < first else 'risen'} from {first:.3g} to {last:.3g}"
    why = ": its answers are all similar" if last < first else ": it answers at random"
    return _finding("entropy_drift", text + why, first=first, last=last)


def _invalid(value: Floats) -> Finding | None:
    late = float(value[-max(ENOUGH // 2, len(value) // 3) :].mean())
    if late < INVALID:
        return None
    first, _ = _ends(value)
    severity = CRITICAL if late >= MOSTLY_INVALID else WARNING
    text = f"{format_share(late)} of the answers are invalid ({format_share(first)} at the start)"
    return _finding("invalid_answers", text, severity, 0.9, rate=late, first=first)


def _reward_flat(reward: Floats) -> Finding | None:
    third = len(reward) // 3
    first, last = reward[:third], reward[-third:]
    change, noise = _change(reward)
    if len(reward) < MANY or (change > 2 * noise and change > 0):
        return None
    fell = change < -2 * noise
    text = f"the reward has {'fallen' if fell else 'not risen'} in {len(reward)} values: "
    text += f"{first.mean():.3g} in the first third, {last.mean():.3g} in the last"
    return _finding("reward_flat", text, confidence=0.7 if fell else 0.6, change=change, noise=noise)
