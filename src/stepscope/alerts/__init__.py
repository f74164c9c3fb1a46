"""Alerts: rules, their evaluation, and notifications."""

from __future__ import annotations

from stepscope.core.moved import forward

forward(
    __name__,
    {
        "backtest": "rules.backtest",
        "callables": "rules.callables",
        "history": "evaluation.history",
        "profiles": "rules.profiles",
        "rule": "rules.rule",
        "suggest": "rules.suggest",
    },
)
