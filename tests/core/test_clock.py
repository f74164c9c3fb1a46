from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.clock import Clock, Jump, Pair, WallMap, boot_id, jumps, read_pair

SECOND = 10**9
DAY = 1_700_000_000 * SECOND


class FakeClock:
    """Ticks by itself: 10 ns pass with every monotonic reading."""

    def __init__(self) -> None:
        self.now = 0

    def wall_ns(self) -> int:
        return DAY

    def monotonic_ns(self) -> int:
        self.now += 10
        return self.now


def test_pair_is_one_moment():
    """A pair takes the middle of the monotonic readings around the wall reading."""
    assert read_pair(FakeClock()) == Pair(DAY, 15)


def test_system_clock():
    """The system's clocks give integers, and the monotonic one never goes back."""
    clock = Clock()
    assert clock.monotonic_ns() <= clock.monotonic_ns()
    assert clock.wall_ns() > DAY


def test_latest_pair_at_or_before():
    """A moment is mapped by the latest pair at or before it, and by the first pair before that."""
    wall = WallMap([(DAY, 0), (DAY + 3600 * SECOND, SECOND)])
    expected = [DAY + SECOND - 1, DAY + 3600 * SECOND, DAY - SECOND]
    assert wall.to_wall_us_array([SECOND - 1, SECOND, -SECOND], np).tolist() == [moment // 1000 for moment in expected]


def test_pairs_in_any_order():
    """The order in which pairs are given does not matter."""
    pairs = [(DAY, 0), (DAY + 5, 7), (DAY - 9, 20)]
    forward, backward = WallMap(pairs), WallMap(reversed(pairs))
    assert (forward.to_wall_us_array(range(30), np) == backward.to_wall_us_array(range(30), np)).all()
    assert len(forward) == 3


@given(
    st.lists(st.tuples(st.integers(0, 2**61), st.integers(0, 2**61)), min_size=1, max_size=20),
    st.lists(st.integers(0, 2**61), max_size=50),
)
def test_any_pairs_and_moments(pairs, moments):
    """Each moment is mapped to the microsecond by the last pair given of the latest at or before it."""
    latest = {monotonic: wall for wall, monotonic in pairs}

    def wall_us(moment):
        start = max((each for each in latest if each <= moment), default=min(latest))
        return (moment + latest[start] - start) // 1000

    assert WallMap(pairs).to_wall_us_array(moments, np).tolist() == [wall_us(moment) for moment in moments]


def test_no_pair():
    """Without a pair there is no wall time."""
    with pytest.raises(ValueError, match="no pair"):
        WallMap([]).to_wall_us_array([1], np)


def test_jumps():
    """Jumps past the threshold are reported with their size and sign; drift and short steps are not."""
    pairs = [(DAY, 0), (DAY + SECOND, SECOND), (DAY + 62 * SECOND, 2 * SECOND), (DAY - 7 * SECOND, 3 * SECOND)]
    found = jumps(pairs, 1.0)
    assert found == [
        Jump((DAY + 62 * SECOND) // 1000, 2 * SECOND, 60.0),
        Jump((DAY - 7 * SECOND) // 1000, 3 * SECOND, -70.0),
    ]
    assert jumps([(DAY + index * (SECOND + 10**6), index * SECOND) for index in range(100)], 0.5) == []


def test_no_numpy():
    """Loading the clock loads no numpy."""
    code = "import sys, stepscope.core.clock; sys.exit('numpy' in sys.modules)"
    source = next(path for path in sys.path if path.endswith("src"))
    assert subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": source}).returncode == 0


def test_boot_id_is_the_kernels():
    """Linux gives each boot an id."""
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_boot_id_without_a_kernel_that_gives_one(monkeypatch):
    """Elsewhere the host name has to do."""

    def refuse(_):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert boot_id.__wrapped__() == os.uname().nodename
