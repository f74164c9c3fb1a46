from __future__ import annotations

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.importers import formats
from stepscope.importers.nvidia_smi import table as nvidia_smi
from tests.importers.foreign import SMI, shared

DMON = """# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk
# Idx      W      C      C      %      %    MHz    MHz
    0     41     34      -     50      7   1215   1410
    1     43     36     40      0      0   1215   1410
"""
TABLE = """Tue Nov  5 10:00:00 2024
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
| N/A   29C    P0             71W /  700W |    4MiB / 81559MiB |      3%      Default |
|   1  NVIDIA RTX 3090                On  |   00000000:19:00.0 Off |                    0 |
| 30%   45C    P2            160W /  350W |    1000MiB / 24576MiB |     98%      Default |
"""


def read(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    (run,) = formats.read(str(path))
    assert run.format == "nvidia_smi"
    return run


def test_the_real_log_without_a_header_is_read():
    """Columns are told by units and values: utilisation, used and free memory, temperature and power."""
    path = shared("gpu-telemetry-nvidia-smi/gpu_log.csv")
    run = nvidia_smi.FORMAT.read(str(path))
    first, rows = path.read_text().splitlines()[0], len(path.read_text().splitlines())
    assert first.startswith("2026/04/25 16:06:06.780, 0 %, 0 %, 2 MiB, 20146 MiB, 27, 11.64 W")
    assert {name: run.series(f"gpu/0/{name}").value[0] for name in ("memory_used_bytes", "memory_free_bytes")} == {
        "memory_used_bytes": 2 * 2**20,
        "memory_free_bytes": 20146 * 2**20,
    }
    assert run.series("gpu/0/temperature_celsius").value[0] == 27
    assert run.series("gpu/0/power_watts").value[0] == 11.64
    assert 0.9 < run.series("gpu/0/utilization_ratio").value.max() <= 1
    assert all(len(run.series(name)) == rows for name in run.names())
    assert np.median(np.diff(run.series("gpu/0/power_watts").time)) == pytest.approx(5, abs=0.1)
    assert set(run.series("gpu/0/power_watts").step.tolist()) == {NO_STEP}


def test_a_header_names_columns_and_units(tmp_path):
    """Each GPU has its own series; what a card does not tell is absent."""
    run = read(tmp_path, SMI)
    assert read(tmp_path, SMI * 2).series("gpu/0/utilization_ratio").value.tolist() == [0.5, 0.5]
    assert run.series("gpu/0/utilization_ratio").value.tolist() == [0.5]
    assert len(run.series("gpu/1/utilization_ratio")) == 0
    assert run.series("gpu/1/memory_used_bytes").value.tolist() == [4 * 2**20]
    assert run.facts["name"] == "NVIDIA A100"


def test_units_of_the_header_count_where_cells_have_none(tmp_path):
    """`--format=csv,nounits` says the unit only once; a GPU is told by its identity where it has no index."""
    run = read(tmp_path, "timestamp, uuid, memory.used [MiB], utilization.gpu [%]\n2026/01/01 00:00:00, GPU-b, 3, 7\n")
    assert run.series("gpu/0/memory_used_bytes").value.tolist() == [3 * 2**20]
    assert run.series("gpu/0/utilization_ratio").value.tolist() == [0.07]
    assert run.series("gpu/0/utilization_ratio").time.tolist() == [1767225600.0]


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (("{i}", "{busy} %", "{used} MiB", "81920 MiB", "{heat}", "{draw} W", "700.00 W"), "itm"),
        (
            (
                "NVIDIA A100-SXM4-80GB",
                "{busy} %",
                "81920 MiB",
                "{free} MiB",
                "{used} MiB",
                "{heat}",
                "400.00 W",
                "{draw} W",
            ),
            "tm",
        ),
        (("{busy} %", "{used} MiB", "{free} MiB", "{heat}", "{draw} W"), "m"),
    ],
)
def test_columns_without_a_header_are_told_by_what_they_hold(cells, names, tmp_path):
    """The total stays, free and used sum to it, used rises with the work; a limit of power stays; heat is bare."""
    text = ""
    for second in range(60):
        busy = 90 * (second // 10 % 2)
        values = {"i": 0, "busy": busy, "used": 400 + busy * 100, "free": 81520 - busy * 100, "heat": 30 + busy // 3}
        row = ", ".join(cells).format(**values, draw=f"{60 + busy * 4}.00")
        text += f"2026/01/01 00:00:{second:02}.000, {row}\n"
    run = read(tmp_path, text)
    assert run.series("gpu/0/memory_used_bytes").value[[0, 10]].tolist() == [400 * 2**20, 9400 * 2**20]
    assert run.series("gpu/0/utilization_ratio").value[[0, 10]].tolist() == [0, 0.9]
    assert run.series("gpu/0/temperature_celsius").value[[0, 10]].tolist() == [30, 60]
    assert run.series("gpu/0/power_watts").value[[0, 10]].tolist() == [60, 420]
    assert ("t" in names) == bool(len(run.series("gpu/0/memory_total_bytes")))


def test_columns_that_nobody_can_tell_are_an_error(tmp_path):
    """Without header and units the numbers mean nothing."""
    path = tmp_path / "log"
    path.write_text("2026/01/01 00:00:00.000, 1, 2, 3\n")
    with pytest.raises(StepscopeError, match="write it with --format=csv"):
        nvidia_smi.FORMAT.read(str(path))


def test_dmon_is_read(tmp_path):
    """`nvidia-smi dmon` names its columns; a dash is absent."""
    run = read(tmp_path, DMON)
    assert run.series("gpu/0/utilization_ratio").value.tolist() == [0.5]
    assert run.series("gpu/1/memory_temperature_celsius").value.tolist() == [40]
    assert len(run.series("gpu/0/memory_temperature_celsius")) == 0
    dated = DMON.replace("# gpu", "#Date       Time        gpu").replace("    0 ", " 20241105   10:00:00      0 ")
    assert read(tmp_path, dated).series("gpu/0/power_watts").time.tolist() == [1730800800.0]


def test_the_table_is_read(tmp_path):
    """What `nvidia-smi -l` repeats: two lines a GPU, at the time above."""
    run = read(tmp_path, TABLE * 2)
    assert run.series("gpu/1/utilization_ratio").value.tolist() == [0.98, 0.98]
    assert run.series("gpu/0/memory_total_bytes").value[0] == 81559 * 2**20
    assert run.series("gpu/1/power_watts").time[0] == 1730800800.0
    assert run.series("gpu/1/fan_ratio").value[0] == 0.3
    assert len(run.series("gpu/0/fan_ratio")) == 0
