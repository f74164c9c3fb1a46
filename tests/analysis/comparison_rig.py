"""Runs to be compared, made of arrays."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.compare.recording import Curve, Group, Recording


def curve(value, first=0, seconds=1.0):
    """Return a curve of a value a step."""
    value = np.asarray(value, float)
    step = np.arange(first, first + len(value))
    return Curve(step, (step + 1) * seconds, value)


def run(label="run", facts=None, **curves):
    """Return a run; a name may be written with `__` for a slash."""
    known = {
        name.replace("__", "/"): found if isinstance(found, Curve) else curve(found) for name, found in curves.items()
    }
    return Recording(label, known, facts or {})


def group(label, *runs):
    """Return some runs as a group."""
    return Group(label, tuple(runs))


def steps(level=0.1, seed=0, count=400, noise=0.02, between=0.002):
    """Return step times of one run of a program: steps that differ a little, and a run that differs a little."""
    draw = np.random.default_rng(seed)
    return level * (1 + draw.normal(0, between)) * (1 + draw.normal(0, noise, count))


def repeats(label, level=0.1, number=5, seed=0, **more):
    """Return repeats of one program."""
    return group(
        label, *(run(f"{label}{at}", step_seconds=steps(level, 100 * seed + at, **more)) for at in range(number))
    )
