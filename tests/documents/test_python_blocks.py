"""Every Python block of the mission's documents runs as it is written, or is listed with the reason why it cannot yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.documents import seeds

pytest.importorskip("torch", reason="the documents' loops need torch")
pytestmark = pytest.mark.skipif(not seeds.documents(), reason=seeds.ABSENT)

USED = {"001": 8, "002": 2, "004": 14}
"""Documents whose blocks use classes, and how many run; those of 000 define them: see test_definitions.py. 003 has no
Python."""


@pytest.mark.promise("X-13", "S4-049", "S1-074")
@pytest.mark.parametrize("document", USED)
def test_blocks_run_as_they_are_written(document, tmp_path):
    """The blocks of a document run one after another, on a machine without a GPU, with imports adjusted by one table."""
    if document == "002":
        pytest.importorskip("transformers", reason="a block makes Transformers' Trainer")
    environ = {**os.environ, "PYTHONPATH": str(seeds.ROOT), "STEPSCOPE_DIR": str(tmp_path / "runs")}
    environ |= {"STEPSCOPE_WEB_PORT": "0", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.documents.runner", document],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    told = "\n".join(f"{document}:{line}\n{trace}" for line, trace in found["failed"].items())
    assert not found["failed"], told
    assert found["ran"] == USED[document]


def test_what_cannot_run_is_listed():
    """Only what the table names is left out, and every entry of the table is needed."""
    every = [*seeds.blocks("python"), *seeds.blocks("bash")]
    assert {block.later for block in every} - {""} == set(seeds.LATER.values())
    assert sum(bool(block.later) for block in seeds.blocks("python")) == 2
