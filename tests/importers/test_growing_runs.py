from __future__ import annotations

import pytest

from stepscope.importers.formats import FORMATS
from stepscope.importers.run_builder import RunBuilder
from stepscope.importers.source import AT_END
from tests.importers.foreign import SAMPLES

PIECE = 23
"""Bytes by which the file grows: records and lines end anywhere in them."""


def points_of(run):
    return {name: columns.value.tolist() for name, columns in run.columns.items()}


@pytest.mark.parametrize("name", ["tfevents", "wandb", "swanlab", "torchtitan"])
def test_what_is_complete_is_added_before_more_is_asked_for(name, tmp_path):
    """A reader of a file that grows has, whenever it reaches the end, what a reader of a copy of it would find."""
    path, copy, data = tmp_path / "file", tmp_path / "copy", SAMPLES[name]
    path.write_bytes(b"")
    run, sizes = RunBuilder(), iter([*range(PIECE, len(data), PIECE), len(data)])

    def grow():
        copied = RunBuilder()
        copy.write_bytes(path.read_bytes().rpartition(b"\n")[0] if name == "torchtitan" else path.read_bytes())
        with_nothing_more = AT_END.set(lambda: False)
        FORMATS[name].fill(str(copy), copied)
        AT_END.reset(with_nothing_more)
        assert points_of(run) == points_of(copied)
        size = next(sizes, None)
        path.write_bytes(data[:size])
        return size is not None

    token = AT_END.set(grow)
    FORMATS[name].fill(str(path), run)
    AT_END.reset(token)
    assert points_of(run)
