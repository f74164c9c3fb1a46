from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import nab
from stepscope.analysis.series.anomalies import (
    FEWEST,
    JUMP,
    LONG,
    anomalies,
    newest,
    plain,
    spans,
    z_scores,
)
from stepscope.analysis.series.rolling import EXACT, quantile_before, quantiles_before

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def noise(count, seed=0):
    return np.random.default_rng(seed).normal(0, 1, count)


@pytest.mark.promise("S0-070")
def test_plain_scores_are_the_documents():
    """The plain score is the distance from the mean in standard deviations of the population."""
    values = noise(500) * 3 + 7
    assert z_scores(values) == pytest.approx((values - np.mean(values)) / np.std(values))
    assert plain(values) == [at for at, z in enumerate(z_scores(values)) if abs(z) > 2]
    assert z_scores([5.0, 5.0, math.nan]) == pytest.approx([0, 0, math.nan], nan_ok=True)
    assert plain([0.1] * 10) == plain([]) == []


@pytest.mark.promise("S0-073")
@pytest.mark.parametrize("seed", range(5))
def test_start_of_training_is_flagged_by_the_plain_score_only(seed):
    """A falling loss: the plain score flags its start, the robust one nothing."""
    x = np.arange(2000)
    loss = 2 + 8 * np.exp(-x / 120) + 0.03 * noise(2000, seed)
    assert 0 in plain(loss)
    assert anomalies(loss).indices == []


@pytest.mark.promise("S1-082")
@pytest.mark.parametrize("at", [40, 120, 700, 3000])
def test_point_never_seen_is_an_anomaly(at):
    """A single point far outside is found, early and late, with what was usual."""
    values = noise(max(250, at + 100))
    values[at] += 12
    (found,) = anomalies(values).anomalies
    assert found.index == found.peak == at
    assert found.high < values[at]
    assert found.score > 1


@pytest.mark.promise("S1-082")
def test_what_comes_back_is_none():
    """A step time with an evaluation every 100 steps has no anomaly; one that takes much longer is one."""
    values = 1 + 0.02 * noise(4000)
    values[::100] = 5
    assert anomalies(values).indices == []
    values[3000] = 12
    assert anomalies(values).indices == [3000]


def test_what_comes_seldom_is_known_after_a_while():
    """An evaluation every 1 000 steps is told three times, then it is known."""
    values = 1 + 0.02 * noise(20_000)
    values[1000::1000] = 5
    assert anomalies(values).indices == [1000, 2000, 3000]


def test_a_wave_that_stays_up_is_seen():
    """By the mean of many points: no value, nor the mean of a few, is unlike what the wave has had before."""
    at = np.arange(4000)
    values = np.sin(at * 2 * np.pi / 288) + 0.05 * np.random.default_rng(0).normal(size=4000)
    assert anomalies(values).indices == []
    stays = values.copy()
    stays[2664:2900] = 1 + 0.05 * np.random.default_rng(1).normal(size=236)  # from the top of a wave on
    (found,) = anomalies(stays).anomalies
    assert found.kind == LONG
    assert 2664 < found.index < 2900


def test_jump_in_a_trend_is_seen():
    """A jump that stays inside the range of the past stands out as a jump."""
    values = 10 - 0.002 * np.arange(3000) + 0.01 * noise(3000)
    values[2000:2010] += 1.5
    (found,) = anomalies(values).anomalies
    assert found.kind == JUMP
    assert found.index == 2000


def test_waves_are_none():
    """Waves of every form, with and without noise, have no anomaly from the first to the last."""
    x = np.arange(3000)
    square = np.where(x // 100 % 2, 80.0, 20.0)
    for wave in (square, square + noise(3000), 50 + 30 * np.sin(x / 40) + noise(3000), np.full(3000, 4.2)):
        assert anomalies(wave).indices == []


@pytest.mark.parametrize("values", [[], [1.0] * (FEWEST - 1), [math.nan] * 100])
def test_few_points_say_so(values):
    """Too few points are not enough data."""
    found = anomalies(values)
    assert found.anomalies == ()
    assert "not enough data" in found.reason


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
@settings(deadline=None)
def test_nothing_raises_or_warns(values):
    """Whatever the numbers, there is a result without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anomalies(values)
        assert len(z_scores(values)) == len(values)


def test_spans_join_what_is_near():
    """Flags with at most `rest` others between are one span."""
    flags = np.zeros(30, dtype=bool)
    flags[[2, 3, 8, 20]] = True
    assert spans(flags, 5) == [(2, 8), (20, 20)]
    assert spans(np.zeros(3, dtype=bool), 5) == []


@pytest.mark.parametrize("window", [1, 4, 5, 40])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95, 1.0])
def test_quantiles_are_of_the_points_before(window, share):
    """Each is one of the points of the window before, by rank."""
    values = noise(200)
    found = quantile_before(values, window, share)
    assert math.isnan(found[0])
    for at in range(1, 200):
        past = np.sort(values[max(0, at - window) : at])
        assert found[at] == past[round(share * (len(past) - 1))]


def test_long_series_share_their_past():
    """In a long series the quantiles are exact at first, then those of points taken evenly from a longer past."""
    values = noise(3 * EXACT)
    past = quantiles_before(values, 100, (0.1, 0.9))
    assert past.row(1)[:500] == pytest.approx(quantile_before(values[:500], 100, 0.9), nan_ok=True)
    column = past.column[2 * EXACT]
    first = int(np.flatnonzero(past.column == column)[0])
    step = 16 * (len(values) // 500) // 100 | 1
    assert past.before(2 * EXACT)[0] == np.sort(values[first - 1 :: -step][:100])[round(0.1 * 99)]


@pytest.mark.parametrize("count", [3000, 30_000, 300_000])
def test_trend_is_none(count):
    """A steady rise of any length has no anomaly, and under noise no more than noise has: 4 in 10 000 points."""
    assert anomalies(np.arange(count)).indices == []
    assert len(anomalies(np.arange(count) + 0.01 * count * noise(count)).indices) <= max(1, 4 * count / 10_000)


def test_files_without_anomaly_have_no_alarm():
    """None of the benchmark's five files without an anomaly has one, from the first point on."""
    if not (DATA / "nab-subset").is_dir():
        pytest.skip("../shared/data/nab-subset is not here")
    quiet = [file for file in nab.read(DATA / "nab-subset") if file.name.startswith("artificialNoAnomaly")]
    assert len(quiet) == 5
    assert [anomalies(file.values).indices for file in quiet] == [[]] * 5


@pytest.mark.slow
@pytest.mark.slow
def test_labelled_anomalies_are_found_better_than_by_a_gaussian():
    """By the benchmark's rules the score is above that of its windowed Gaussian at its best threshold."""
    if not (DATA / "nab-subset").is_dir():
        pytest.skip("../shared/data/nab-subset is not here")
    files = nab.read(DATA / "nab-subset")
    ours = nab.score(files, [anomalies(file.values).indices for file in files])
    likely = [nab.windowed_gaussian(file.values) for file in files]
    best = max(
        nab.score(files, [np.flatnonzero(each >= 1 - 10.0**-digits) for each in likely]) for digits in range(2, 16)
    )
    assert ours > best + 10


def test_the_newest_points_are_judged_as_the_whole_series_is():
    """A cheap look at the end has the score that the whole has, for a value and for a level."""
    values = np.random.default_rng(0).normal(5, 0.3, 1000)
    values[900] = 9.0
    (whole,) = anomalies(values[:901]).anomalies
    found = newest(values[:901], 1)
    assert found is not None
    assert (found.index, found.kind, found.value) == (900, "value", 9.0)
    assert found.score == pytest.approx(whole.score)
    later = newest(values[:990], 50)
    assert later is None or later.score < 1
    assert newest(values[:200], 10) is None
    assert newest(np.full(500, np.nan), 10) is None
