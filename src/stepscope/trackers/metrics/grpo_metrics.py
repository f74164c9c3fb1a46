"""Metrics of group-relative policy optimisation (GRPO): the rewards within each group of answers, not only means."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.metric_tracker import MetricTracker
from stepscope.trackers.metrics.score_distribution import score_of
from stepscope.trackers.metrics.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.trackers.logged_run import LoggedRun

SAME = 1e-8
"""Standard deviation up to which the rewards of a group count as equal: nothing can be learned from it."""
TRL_NAMES = {"mean_reward": "reward", "kl_divergence": "kl", "completion_length": "completions/mean_length"}
"""Names in a run, where they differ from the argument's."""
MOST_GROUPS = 10_000
"""Newest groups that are kept one by one; the counts cover all."""


class GRPOMetricsTracker:
    """Track a GRPO training: the metrics of its steps and the rewards within each group.

    Standard deviations are the population's (ddof=0). Nothing here raises into the training. With `run` everything is
    also logged there, under the names that TRL's trainer uses, so that `stepscope diagnose` reads it.
    """

    def __init__(self, *, run: LoggedRun | None = None) -> None:
        """Track in process, and log to `run` if one is given."""
        self.tracker = MetricTracker()
        """Statistics of policy_loss, mean_reward, kl_divergence and `reward/<component>`."""
        self._run, self._notices = run, Complaints()
        self._step: int | None = None
        self._rewards, self._within, self._means = Statistics(), Statistics(), Statistics()
        self._groups, self._flat, self._invalid = 0, 0, 0
        self._ranks: dict[int, Statistics] = {}
        self._recent: deque[tuple[float, ...]] = deque(maxlen=MOST_GROUPS)

    def update_grpo_step(
        self,
        step: int | None = None,
        policy_loss: object = None,
        mean_reward: object = None,
        reward_components: Mapping[str, object] | None = None,
        kl_divergence: object = None,
        **others: object,
    ) -> None:
        """Add the figures of one step; `others` are further ones by name, such as entropy or completion_length.

        `reward_components` has the batch mean of each part of the reward, under any name, such as format and score.
        """
        self._step = step
        given = {"policy_loss": policy_loss, "mean_reward": mean_reward, "kl_divergence": kl_divergence, **others}
        figures = {name: value for name, value in given.items() if value is not None}
        parts = reward_components or {}
        self.tracker.update_batch({**figures, **{f"reward/{name}": value for name, value in parts.items()}}, step)
        logged = {TRL_NAMES.get(name, name): value for name, value in figures.items()}
        self._log({**logged, **{f"rewards/{name}/mean": value for name, value in parts.items()}}, step)

    def update_group_rewards(self, rewards: Iterable[object], step: int | None = None) -> None:
        """Add the rewards of the answers to one prompt; None and NaN are invalid answers."""
        scores = [score_of(reward) for reward in rewards]
        values = tuple(score for score in scores if score is not None)
        self._invalid += len(scores) - len(values)
        if not values:
            return
        group = Statistics(values)
        spread = group.std or 0.0
        self._groups += 1
        self._flat += spread <= SAME
        self._within.add(spread)
        self._means.add(group.mean)
        for value in values:
            self._rewards.add(value)
        for place, value in enumerate(sorted(values, reverse=True)):
            self._ranks.setdefault(place, Statistics()).add(value)
        self._recent.append(values)
        figures = {"frac_reward_zero_std": float(spread <= SAME), "reward_std": spread, "group_reward": group.mean}
        figures["invalid_ratio"] = (len(scores) - len(values)) / len(scores)
        self._log(figures, self._step if step is None else step)

    def get_reward_distribution(self) -> dict[str, Any]:
        """Return how the rewards given by `update_group_rewards` are distributed; None where there are none yet.

        - `reward_mean`, `reward_std`: over all rewards of all groups.
        - `within_group_std`: mean of the groups' own standard deviations: what the advantages are made of.
        - `across_group_std`: standard deviation of the groups' means: how different the prompts are.
        - `zero_variance_groups`, `zero_variance_ratio`: groups in which all rewards are equal, and their share.
        - `rank_distribution`: for each place in a group ("0" the best) the mean, std, min and max reward.
        - `groups`, `rewards`, `invalid`: how many there were.
        - `mean_reward`: mean of what `update_grpo_step` was given, which may be of other data.
        """
        return {
            "reward_mean": self._rewards.average,
            "reward_std": self._rewards.std,
            "within_group_std": self._within.average,
            "across_group_std": self._means.std,
            "zero_variance_groups": self._flat,
            "zero_variance_ratio": self._flat / self._groups if self._groups else None,
            "rank_distribution": {
                str(place): {
                    "mean": one.average,
                    "std": one.std,
                    "min": one.minimum,
                    "max": one.maximum,
                    "count": one.count,
                }
                for place, one in sorted(self._ranks.items())
            },
            "groups": self._groups,
            "rewards": self._rewards.count,
            "invalid": self._invalid,
            "mean_reward": self.tracker.get_mean("mean_reward"),
        }

    def get_groups(self) -> list[dict[str, Any]]:
        """Return mean, std, best, worst, size and whether all are equal, of the newest groups, oldest first."""
        found = []
        for values in self._recent:
            group = Statistics(values)
            spread = group.std or 0.0
            ends = {"best": group.maximum, "worst": group.minimum, "size": len(values)}
            found.append({"mean": group.mean, "std": spread, **ends, "zero_variance": spread <= SAME})
        return found

    def get_summary(self) -> dict[str, Any]:
        """Return the statistics of every figure, the distribution of the rewards, and the components' shares."""
        return {
            "metrics": {name: self.tracker.get_summary(name) for name in self.tracker.names()},
            "reward_distribution": self.get_reward_distribution(),
            "component_shares": self.component_shares(),
        }

    def component_shares(self) -> dict[str, float]:
        """Return the share of each reward component in what moves the reward: its std over the sum of all stds."""
        spread = {
            name.removeprefix("reward/"): self.tracker.get_std(name) or 0.0
            for name in self.tracker.names()
            if name.startswith("reward/")
        }
        total = math.fsum(spread.values())
        return {name: value / total for name, value in spread.items()} if total > 0 else {}

    def _log(self, values: Mapping[str, Any], step: int | None) -> None:
        if self._run is not None and values:
            with self._notices.shield("run", "log GRPO metrics", "they are kept in process"):
                self._run.log(dict(values), step=step)
