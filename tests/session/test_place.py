"""What a program says about the place of a rank."""

from __future__ import annotations

import stepscope
from stepscope.sources.rank_table import rank_table
from tests.integration.processes import wait_until_written


def test_place_is_recorded_and_read(tmp_path, monkeypatch):
    """`run.place` gives coordinates, the launcher's variables too; what is no number is left out and never raised."""
    for name, text in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "TP_RANK": "1"}.items():
        monkeypatch.setenv(name, text)
    with stepscope.init(project="p", run_id="r", dir=str(tmp_path)) as run:
        run.place(dp=2, expert="x")
        with run.step():
            pass
    wait_until_written(run)
    (row,) = rank_table(stepscope.open(run.path)).rows
    assert row.place.coordinates == {"tensor": 1, "data": 2}
