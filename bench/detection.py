"""Trends, anomalies, change points and loss spikes on real data, beside their peers."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench import nab
from bench.figure import Figure, Options
from bench.marked import cover, f_score, marked, planted, restless
from stepscope.analysis.series import anomalies as detector
from stepscope.analysis.series.anomalies import anomalies
from stepscope.analysis.series.change_points import change_points
from stepscope.analysis.series.spikes import spikes
from stepscope.analysis.series.trend import trend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
ABSENT = "not installed: ../shared/data"
DEFAULTS = (1.0, detector.QUANTILES[-1], float(detector.DOUBT))
SETTINGS = [
    *((threshold, *DEFAULTS[1:]) for threshold in (0.6, 0.8, 1.0, 1.25, 1.5)),
    *((1.0, extreme, doubt) for extreme in (0.99, 0.995, 0.999) for doubt in (300.0, 1000.0, 3000.0)),
]
"""Threshold, share of the past below its end, and doubt of a short past, that half the files choose from."""
NINES = tuple(1 - 10.0**-digits for digits in np.arange(1, 16, 0.5))
"""Thresholds of the windowed Gaussian that they choose from."""
MIXTRAL = "mixtral__mixtral_8x7b_alltoall_tp2pp4ep4_release"
SPIKES = (2360, 2830, 3800, 3850, 4260, 4970)
"""Steps of the mixtral run more than 8 % over the median of 40 points before (2365 belongs to 2360)."""


def measure(options: Options) -> list[Figure]:
    """Return the figures of all detectors."""
    return [*_changes(options), *_anomalies(options), *_spikes(), *_speed(options)]


def _changes(options: Options) -> list[Figure]:
    """Return where we are worse than BINSEG, and whether we are better on planted shifts."""
    what, key = "series with changes found worse than by BINSEG", "changes_worse"
    if not DATA.is_dir():
        return [Figure(key, what, None, "", 0, ABSENT), _planted(options), _restless(options)]
    found = []
    for name, (values, marks) in marked(DATA).items():
        if options.quick and len(values) > 1000:
            continue
        ours, theirs = f_score(marks, change_points(values).indices), _best_binseg(values, marks)
        found.append((name, ours, theirs))
    worse = float(sum(theirs > ours + 1e-9 for _, ours, theirs in found if not math.isnan(theirs)))
    beside = ", ".join(f"{name} {ours:.2f}/{theirs:.2f}" for name, ours, theirs in found)
    value = None if any(math.isnan(theirs) for *_, theirs in found) else worse
    figure = Figure(key, what, value, "", 0, f"F ours/BINSEG: {beside}" + _missing("ruptures"))
    return [figure, _planted(options), _restless(options)]


def _restless(options: Options) -> Figure:
    """Return what is missing to a full cover of series with seasons or noise that lasts."""
    series = [restless(seed) for seed in range(options.seed, options.seed + (12 if options.quick else 200))]
    found = [change_points(values).indices for values, _ in series]
    pairs = list(zip(series, found, strict=True))
    score = float(np.mean([f_score(marks, one) for (_, marks), one in pairs]))
    covered = float(np.mean([cover(marks, one, len(values)) for (values, marks), one in pairs]))
    what = "seasons and lasting noise with planted shifts: cover missing"
    return Figure("changes_restless", what, 100 * (1 - covered), "%", 10.0, f"mean F of {len(series)}: {score:.3f}")


def _planted(options: Options) -> Figure:
    """Return the probability that we are no better than BINSEG on series with planted shifts."""
    what, key = "p that planted shifts are found no better than by BINSEG", "changes_planted"
    if _missing("ruptures"):
        return Figure(key, what, None, "", 0.05, _missing("ruptures"))
    from scipy.stats import wilcoxon

    series = [planted(seed) for seed in range(options.seed, options.seed + (12 if options.quick else 200))]
    ours = np.array([f_score(marks, change_points(values).indices) for values, marks in series])
    theirs = np.array([_best_binseg(values, marks) for values, marks in series])
    otava = [f_score(marks, _otava(values)) for values, marks in series] if not _missing("otava") else []
    beside = f"mean F of {len(series)}: {ours.mean():.3f}, BINSEG {theirs.mean():.3f}, "
    beside += f"Otava {np.mean(otava):.3f}" if otava else "Otava" + _missing("otava")
    apart = np.any(ours != theirs)
    return Figure(
        key, what, float(wilcoxon(ours, theirs, alternative="greater").pvalue) if apart else 1.0, "", 0.05, beside
    )


def _best_binseg(values: Numbers, marks: Sequence[Sequence[int]]) -> float:
    """Return the better F-score of ruptures' BINSEG on the series in standard deviations and in noise."""
    if _missing("ruptures"):
        return math.nan
    import ruptures

    noise = float(np.median(np.abs(np.diff(values)))) * 1.4826 / math.sqrt(2)
    scores = []
    for unit in (float(np.std(values)), noise):
        scaled = (values - values.mean()) / (unit or 1.0)
        found = ruptures.Binseg(model="l2").fit(scaled).predict(pen=3 * math.log(len(values)))[:-1]
        scores.append(f_score(marks, found))
    return max(scores)


def _otava(values: Numbers) -> list[int]:
    """Return the changes that Otava finds with its defaults."""
    from otava.analysis import compute_change_points

    return [int(change.index) for change in compute_change_points(values.tolist())[0]]


def _missing(package: str) -> str:
    """Return that a package is not installed, or nothing."""
    return "" if importlib.util.find_spec(package) else f" {package} not installed"


def _anomalies(options: Options) -> list[Figure]:
    """Return the best peer's score over ours, and alarms where there must be none."""
    held_what = "best peer's NAB score / ours, settings chosen on the other half"
    quiet_what, start_what = "alarms on files without anomaly", "alarms in the first tenth of real trainings' losses"
    if not DATA.is_dir():
        return [
            Figure("anomalies_over_best", held_what, None, "", 1, ABSENT),
            Figure("anomalies_halves", "  random halves on which a peer is as good", None, "%", None, ABSENT),
            Figure("anomalies_default", "  with our defaults, all files", None, "", 1, ABSENT),
            Figure("anomalies_quiet", quiet_what, None, "", 0, ABSENT),
            Figure("anomalies_start", start_what, None, "", 0, ABSENT),
        ]
    files = nab.read(DATA / "nab-subset")
    quiet = [len(anomalies(file.values).indices) for file in files if "art_" in file.name]
    losses = _losses().values()
    start = sum(at < len(loss) / 10 for loss in losses for at in anomalies(loss).indices)
    scored = [file for file in files if len(file.values) < 4100][::5] if options.quick else files
    return [
        *_nab_scores(scored, held_what, 10 if options.quick else 100),
        Figure(
            "anomalies_quiet", quiet_what, float(sum(quiet)), "", 0, f"of {len(quiet)} files, from the first point on"
        ),
        Figure("anomalies_start", start_what, float(start), "", 0, f"of {len(losses)} trainings"),
    ]


def _nab_scores(files: list[nab.Labelled], what: str, halves: int) -> list[Figure]:
    """Return the best peer's score over ours on the half that chose nothing, and on all files with our defaults.

    Whoever found our constants has seen files of both halves; so the same is asked of random halves, with the constants
    that matter most chosen by a program, which sees the other half alone.
    """
    scored = _settings_by_files(files)
    windows = np.array([nab.windows_of(file) for file in files])
    even, odd = np.arange(0, len(files), 2), np.arange(1, len(files), 2)
    held = {name: _chosen(parts, windows, even, odd) for name, parts in scored.items()}
    every = np.arange(len(files))
    whole = {name: _chosen(parts, windows, every, every) for name, parts in scored.items()}
    whole["ours"] = _score(scored["ours"][SETTINGS.index(DEFAULTS)], windows, every)
    lost, middle = _random_halves(scored, windows, halves)
    halves_what = "  random halves on which a peer is as good, everything chosen on the others"
    return [
        Figure("anomalies_over_best", what, _over(held), "", 1, _said(held)),
        Figure(
            "anomalies_halves", halves_what, 100 * lost / halves, "%", None, f"of {halves}; medians {_said(middle)}"
        ),
        Figure("anomalies_default", "  with our defaults, all files", _over(whole), "", 1, _said(whole)),
    ]


def _settings_by_files(files: list[nab.Labelled]) -> dict[str, Numbers]:
    """Return what each setting of each detector earns on each file."""
    likely = [nab.windowed_gaussian(file.values) for file in files]
    found: dict[str, list[list[Sequence[int]]]] = {
        "ours": [[_detected(file.values, *setting) for file in files] for setting in SETTINGS],
        "windowedGaussian": [[np.flatnonzero(one >= limit).tolist() for one in likely] for limit in NINES],
        "relativeEntropy": [[np.flatnonzero(nab.relative_entropy(file.values)).tolist() for file in files]],
    }
    return {name: np.array([_parts(files, setting) for setting in settings]) for name, settings in found.items()}


def _random_halves(scored: dict[str, Numbers], windows: Numbers, halves: int) -> tuple[int, dict[str, float]]:
    """Return on how many random halves a peer is as good as we are, and the median score of each detector."""
    draw = np.random.default_rng(0)
    splits = [np.split(draw.permutation(len(windows)), [len(windows) // 2]) for _ in range(halves)]
    drawn = [{name: _chosen(parts, windows, *split) for name, parts in scored.items()} for split in splits]
    lost = sum(_over(one) >= 1 for one in drawn)
    return lost, {name: float(np.median([one[name] for one in drawn])) for name in scored}


def _detected(values: Numbers, threshold: float, extreme: float, doubt: float) -> Sequence[int]:
    """Return what we find with other constants."""
    before = detector.QUANTILES, detector.DOUBT
    detector.QUANTILES, detector.DOUBT = (1 - extreme, 0.1, 0.9, extreme), doubt  # type: ignore[assignment]
    try:
        return anomalies(values, threshold=threshold).indices
    finally:
        detector.QUANTILES, detector.DOUBT = before


def _parts(files: Sequence[nab.Labelled], found: Sequence[Sequence[int]]) -> list[float]:
    return [nab.raw_score(file, one) for file, one in zip(files, found, strict=True)]


def _score(parts: Numbers, windows: Numbers, chosen: NDArray[np.intp]) -> float:
    """Return the score of some files, 0 for silence and 100 for perfection."""
    count = float(windows[chosen].sum())
    return 100 * (float(parts[chosen].sum()) + count) / (2 * count) if count else 0.0


def _chosen(parts: Numbers, windows: Numbers, chosen: NDArray[np.intp], held: NDArray[np.intp]) -> float:
    """Return the score on some files with the setting that is best on others (settings by files)."""
    best = max(range(len(parts)), key=lambda at: _score(parts[at], windows, chosen))
    return _score(parts[best], windows, held)


def _over(scores: dict[str, float]) -> float:
    """Return the best peer's score over ours."""
    return max(score for name, score in scores.items() if name != "ours") / max(scores["ours"], 1e-9)


def _said(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {score:.1f}" for name, score in scores.items())


def _spikes() -> list[Figure]:
    """Return known spikes that are missed or late, and false ones on healthy runs."""
    names = {"spikes_missed": "known loss spikes missed", "spikes_late": "points until a spike is told, at most"}
    if not DATA.is_dir():
        false = Figure("spikes_false", "false spikes per 10 000 healthy points", None, "", 1, ABSENT)
        return [*(Figure(key, what, None, "", 0, ABSENT) for key, what in names.items()), false]
    losses = _losses()
    delays = [_delay(losses[MIXTRAL], at) for at in _places(SPIKES)] + [_delay(*case) for case in _incidents()]
    told = [delay for delay in delays if delay is not None]
    healthy = {name: loss for name, loss in losses.items() if name != MIXTRAL}
    points = sum(len(loss) for loss in healthy.values())
    false = sum(len(spikes(loss).spikes) for loss in healthy.values())
    beside = f"{len(delays)} spikes: mixtral, tr1-13B and gpt2-meg with plateaus of 20 points and more"
    counted = f"{false} in {points} points of {len(healthy)} runs"
    return [
        Figure("spikes_missed", names["spikes_missed"], float(len(delays) - len(told)), "", 0, beside),
        Figure("spikes_late", names["spikes_late"], float(max(told, default=0)), "", 1),
        Figure("spikes_false", "false spikes per 10 000 healthy points", false / points * 1e4, "", 1, counted),
    ]


def _delay(loss: Numbers, at: int) -> int | None:
    """Return how many points after a known spike one is told; None if none is within two."""
    return min((spike.told - at for spike in spikes(loss).spikes if 0 <= spike.told - at <= 2), default=None)


def _incidents() -> list[tuple[Numbers, int]]:
    """Return the incidents of two real runs, their plateaus lengthened by repeating them with their noise."""
    found = []
    for name, plateau in (("tr1-13B", 3), ("megatron_gpt2_n16", 1)):
        text = (DATA / "bloom-incidents" / f"{name}_iteration_lines.log").read_text(encoding="utf-8")
        loss = np.array([float(value) for value in re.findall(r"lm loss: (\S+)", text)])
        before = loss[:plateau]
        width = float(before.std()) if plateau > 1 else 0.01 * float(before[0])
        for seed, count in enumerate((20, 21, 40, 200)):
            noise = np.random.default_rng(seed).normal(0, width, count + plateau)
            found.append(
                (np.concatenate([np.resize(before, count + plateau) + noise, loss[plateau:]]), count + plateau)
            )
    return found


def _golden(path: Path) -> dict[str, str]:
    return json.loads(path.read_text(encoding="utf-8"))["lm loss"]["values"]


def _places(steps: Sequence[int]) -> list[int]:
    """Return the indices of steps of the mixtral run."""
    logged = [int(step) for step in _golden(DATA / "megatron-golden" / MIXTRAL / "golden_values_dev_dgx_h100.json")]
    return [logged.index(step) for step in steps]


def _losses() -> dict[str, Numbers]:
    """Return the losses of real trainings by name."""
    found = {}
    for path in sorted((DATA / "megatron-golden").glob("*/golden_values_dev_dgx_h100.json")):
        found[path.parent.name] = np.array([float(value) for value in _golden(path).values()])
    text = (DATA / "modded-nanogpt-runs" / "2024-10-10_Muon_with_train_loss.txt").read_text(encoding="utf-8")
    found["muon"] = np.array([float(value) for value in re.findall(r"train_loss:([\d.]+)", text)])
    history = json.loads((DATA / "hf-trainer-state" / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    found["trainer_state"] = np.array([row["loss"] for row in history if "loss" in row])
    for path in sorted((DATA / "mlperf-v5.1-runs").glob("*/*.txt")):
        loss = re.findall(r'train_loss": ([\d.e+-]+)', path.read_text(encoding="utf-8"))
        if loss:
            found[f"{path.parent.name}/{path.stem}"] = np.array([float(value) for value in loss])
    return found


def _speed(options: Options) -> list[Figure]:
    """Return the seconds of one core that a long series takes in each (they use one), the best of three."""
    count = 100_000 if options.quick else 1_000_000
    values = np.random.default_rng(0).normal(0, 1, count)
    values[count // 2 :] += 1
    when = np.arange(count, dtype=np.float64)
    jobs: dict[str, Callable[[], object]] = {
        "trend": lambda: trend(when, values),
        "anomalies": lambda: anomalies(values),
        "changes": lambda: change_points(values),
        "spikes": lambda: spikes(values),
    }
    found = []
    for name, job in jobs.items():
        core, wall = min(_seconds(job) for _ in range(1 if options.quick else 3))
        beside = f"{wall:.2f} s by the clock"
        found.append(Figure(f"million_{name}", f"{name} of {count:.0e} points, of a core", core, "s", 1.0, beside))
    return found


def _seconds(job: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of this process and of the clock that a job takes."""
    core, wall = time.process_time(), time.perf_counter()
    job()
    return time.process_time() - core, time.perf_counter() - wall
