"""A training loop in numpy, watched: `python examples/plain_loop.py`. Takes a few seconds, needs nothing but stepscope.

A table of letter pairs learns to guess the next letter of a text. What Stepscope needs is marked with an arrow.
"""

from __future__ import annotations

import time

import numpy as np

import stepscope

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps under the old oak tree " * 40
STEPS, BATCH, LENGTH, RATE = 300, 32, 24, 4.0


def batches(letters, random):
    """Yield so many pieces of the text, and the same ones moved on by a letter."""
    for _ in range(STEPS):
        starts = random.integers(0, len(letters) - LENGTH - 1, BATCH)
        pieces = letters[starts[:, None] + np.arange(LENGTH + 1)]
        yield pieces[:, :-1].ravel(), pieces[:, 1:].ravel()


def main():
    alphabet = sorted(set(TEXT))
    letters = np.array([alphabet.index(letter) for letter in TEXT])
    table = np.zeros((len(alphabet), len(alphabet)))
    random = np.random.default_rng(0)

    run = stepscope.init(project="examples", name="plain loop", config={"rate": RATE, "batch": BATCH})  # <-
    for x, y in run.data(batches(letters, random)):  # <-
        with run.step(samples=BATCH):  # <-
            begun = time.perf_counter()
            with run.phase("forward"):  # <-
                scores = np.exp(table[x])
                found = scores / scores.sum(axis=1, keepdims=True)
                loss = -np.log(found[np.arange(len(y)), y]).mean()
            with run.phase("backward"):  # <-
                found[np.arange(len(y)), y] -= 1
                gradient = np.zeros_like(table)
                np.add.at(gradient, x, found / len(y))
            with run.phase("optimizer"):  # <-
                table -= RATE * gradient
            seconds = time.perf_counter() - begun
            run.log({"loss": loss, "tokens_per_second": len(y) / seconds, "batch_size": BATCH})  # <-
    run.finish()  # <-

    past = stepscope.open(run.path)
    print(f"{past.state}: loss {past.series('loss').value[0]:.3f} -> {past.series('loss').value[-1]:.3f}")
    print(f"a step took {past.summary('step_seconds')['p50'] * 1e3:.2f} ms (median)")
    print(f"look at it: stepscope show {past.path}")


if __name__ == "__main__":
    main()
