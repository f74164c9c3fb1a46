"""Healthy trainings beside a real watcher: no alert fires. A training that diverges does fire one."""

from __future__ import annotations

import pytest

import stepscope
from stepscope.alerts.evaluation.history import alerts_of
from tests.integration.processes import until, watchers

PROGRAM = """
import math, sys, time
import numpy as np
import stepscope

draw = np.random.default_rng(0)
truth = draw.normal(size=8)


def batch(size, noise):
    x = draw.normal(size=(size, 8))
    return x, (x @ truth + noise * draw.normal(size=size) > 0).astype(float)


def logistic(weights, x, y):
    p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
    loss = -np.mean(y * np.log(p + 1e-9) + (1 - y) * np.log(1 - p + 1e-9))
    return float(loss), x.T @ (p - y) / len(y)


def supervised(size, rate, noise):
    weights = np.zeros(8)
    for step in range(1200):
        loss, gradient = logistic(weights, *batch(size, noise(step)))
        weights -= rate(step) * gradient
        yield {"train/loss": loss, "grad_norm": float(np.linalg.norm(gradient)), "lr": rate(step)}


def tiny_batches():
    return supervised(4, lambda step: 0.05, lambda step: 1.0)


def cycles():
    rate = lambda step: 0.02 + 0.45 * (1 + math.cos(math.pi * (step % 200) / 200))
    return supervised(32, rate, lambda step: 0.5)


def curriculum():
    return supervised(64, lambda step: 0.3, lambda step: 0.2 + step / 2400)


def adversaries():
    a, b = np.ones(2), np.array([1.0, -1.0])
    for step in range(1200):
        noise = 0.05 * draw.normal(size=2)
        a, b = a - 0.05 * (b + 0.1 * a + noise), b + 0.05 * (a - 0.1 * b + noise)
        game = float(a @ b)
        yield {"generator/loss": 1 + game + 0.1 * draw.normal(), "critic/loss": 1 - game + 0.1 * draw.normal()}


def policy():
    logits, value = np.zeros(5), np.linspace(0, 1, 5)
    for step in range(1200):
        p = np.exp(logits - logits.max())
        p /= p.sum()
        taken = draw.choice(5, size=16, p=p)
        reward = value[taken] + draw.normal(size=16)
        advantage = reward - reward.mean()
        loss = -np.mean(np.log(p[taken]) * advantage)
        for one, gain in zip(taken, advantage):
            logits += 0.02 * gain * ((np.arange(5) == one) - p) / 16
        entropy = -np.sum(p * np.log(p))
        yield {"loss": loss, "reward": reward.mean(), "entropy": entropy, "actor/ppo_kl": 0.01 * abs(draw.normal())}


def diverging():
    loss = 2.0
    for step in range(900):
        loss = loss * 1.01 if step > 600 else 2.0
        yield {"loss": loss * (1 + 0.02 * draw.normal())}


run = stepscope.init(project="p", name=sys.argv[1])
for step, row in enumerate(globals()[sys.argv[1]]()):
    run.log({name: float(value) for name, value in row.items()}, step=step)
    if step % 10 == 0:
        time.sleep(0.005)
run.finish()
print(run.path)
"""
MACHINE = {"cpu_usage", "memory_pressure", "io_wait", "io_pressure", "disk_usage", "disk_filling"}
"""Rules on the machine, which the tests do not own."""


def fired(bench, name):
    """Train; return the names of the rules that fired."""
    trainer = bench.run(PROGRAM, name)
    assert trainer.process.returncode == 0, trainer.err
    until(lambda: not watchers(*bench.roots), "the end of the watcher")
    path = trainer.out.splitlines()[-1]
    return {row["rule"] for row in alerts_of(stepscope.open(path).events())} - MACHINE


@pytest.mark.parametrize("name", ["tiny_batches", "cycles", "curriculum", "adversaries", "policy"])
def test_a_healthy_training_fires_no_alert(bench, name):
    """Whatever its loss does by nature: noise, cycles, harder data, an adversary, a policy."""
    assert fired(bench, name) == set()


def test_a_training_that_diverges_fires(bench):
    """The same loop, the same watcher."""
    assert "loss_divergence" in fired(bench, "diverging")
