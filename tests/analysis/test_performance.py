from __future__ import annotations

import math
import subprocess
import sys
from datetime import datetime, timezone

import numpy as np
import pytest

from stepscope.analysis import PerformanceAnalyzer

ROWS = [
    {"loss": 3.0 - 0.01 * at, "timestamp": 1000.0 + at, "cpu_percent": 50.0 + at % 3, "gpu_memory": 1000.0 * (at % 2)}
    for at in range(100)
]


@pytest.mark.promise("S0-067", "S0-068")
def test_loss_trend_has_the_documents_keys():
    """The trend is told with slope, r², p, direction and significance, as in the document."""
    found = PerformanceAnalyzer(ROWS).analyze_loss_trend()
    assert set(found) == {"slope", "r_squared", "p_value", "trend", "significance"}
    assert found["slope"] == pytest.approx(-0.01)
    assert found["r_squared"] == pytest.approx(1)
    assert (found["trend"], found["significance"]) == ("decreasing", "significant")


@pytest.mark.promise("S0-069")
def test_resource_usage_has_the_documents_keys():
    """Processor and GPU memory have mean, std, max and min, numpy's numbers."""
    found = PerformanceAnalyzer(ROWS).analyze_resource_usage()
    assert set(found) == {"cpu_stats", "gpu_stats"}
    cpu = [row["cpu_percent"] for row in ROWS]
    expected = {"mean": np.mean(cpu), "std": np.std(cpu), "max": max(cpu), "min": min(cpu)}
    assert found["cpu_stats"] == pytest.approx(expected)
    assert found["gpu_stats"]["mean"] == pytest.approx(500)


@pytest.mark.promise("S0-070", "S0-073")
def test_anomalies_have_the_documents_keys():
    """The plain score tells index, timestamp, loss and z; the robust one has the same form."""
    rows = [{"loss": 2.0 + 0.01 * (at % 5), "timestamp": float(at)} for at in range(200)]
    rows[120]["loss"] = 9.0
    for method in ("z_score", "robust"):
        (found,) = PerformanceAnalyzer(rows).detect_anomalies(method)
        assert (found["index"], found["timestamp"], found["loss"]) == (120, 120.0, 9.0)
        assert found["z_score"] > 2


def test_unknown_method_is_refused():
    """A method that does not exist is an error that names those that do."""
    with pytest.raises(ValueError, match="choose z_score or robust"):
        PerformanceAnalyzer(ROWS).detect_anomalies("magic")


@pytest.mark.promise("S0-071")
@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"loss": 1.0, "timestamp": 0.0}],
        [{"loss": 2.0, "timestamp": 5.0}] * 3,
        [{"loss": math.nan, "timestamp": 1.0}, {"loss": None}, {}],
        [{"loss": "high", "timestamp": "yesterday", "gpu_memory": {"gpu_0": {"used": None}}}] * 4,
    ],
)
def test_odd_histories_have_defined_results(rows):
    """Few, constant, absent and foreign values give results that say they are unknown, and never an exception."""
    found = PerformanceAnalyzer(rows)
    assert found.analyze_loss_trend()["significance"] == "not_significant"
    assert found.detect_anomalies() == found.detect_anomalies("robust") == []
    assert found.analyze_resource_usage()["gpu_stats"] == {"mean": None, "std": None, "max": None, "min": None}
    assert "not enough data" in found.loss_spikes().reason
    assert found.loss_changes().changes == ()
    assert {pattern.kind for pattern in found.resource_patterns().values()} == {"unknown"}


@pytest.mark.promise("S0-071")
def test_gpu_memory_by_gpu_is_summed():
    """Memory that is given by GPU counts as one sum per row."""
    rows = [{"gpu_memory": {"gpu_0": 100.0, "gpu_1": 50.0 + at}} for at in range(3)]
    assert PerformanceAnalyzer(rows).analyze_resource_usage()["gpu_stats"]["max"] == pytest.approx(152)


def test_times_may_be_moments():
    """Timestamps may be datetimes or their ISO form; rows without any are numbered."""
    moments = [datetime.fromtimestamp(1e9 + at, timezone.utc) for at in range(50)]
    slopes = []
    for stamp in (lambda at: moments[at], lambda at: moments[at].isoformat(), lambda at: None):
        rows = [{"loss": 5.0 - at, "timestamp": stamp(at)} for at in range(50)]
        slopes.append(PerformanceAnalyzer(rows).analyze_loss_trend()["slope"])
    assert slopes == pytest.approx([-1.0, -1.0, -1.0])


def test_windows_and_changes_of_the_loss_are_told():
    """The history can be seen in parts, and its lasting changes found."""
    rows = [{"loss": 3.0 if at < 60 else 2.0, "timestamp": float(at)} for at in range(120)]
    analyzer = PerformanceAnalyzer(rows)
    assert len(analyzer.loss_windows(6)) == 6
    assert analyzer.loss_changes().indices == [60]


def test_room_is_light_until_used():
    """The room alone loads neither numpy nor scipy."""
    program = "import sys, stepscope.analysis; print('numpy' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
