"""Every Python block of the mission's documents runs as it is written, or is listed with the reason why it cannot."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import seeds
from tests.integration.processes import until

pytest.importorskip("torch", reason="the documents' loops need torch")
pytestmark = pytest.mark.skipif(not seeds.documents(), reason=seeds.ABSENT)

USED = {"001": 9, "002": 2, "004": 14}
"""Documents whose blocks use classes, and how many run; those of 000 define them: see test_definitions.py. 003 has no
Python."""


@pytest.fixture(autouse=True)
def _no_page_is_left(tmp_path):
    """End the server of a page that a block has started: it would wait for its reader."""
    yield
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            if "stepscope.web.training_server" in words and str(tmp_path) in words:
                os.kill(int(process.name), signal.SIGTERM)


@pytest.mark.promise("X-13", "S4-049", "S1-074")
@pytest.mark.parametrize("document", USED)
def test_blocks_run_as_they_are_written(document, tmp_path):
    """The blocks of a document run one after another, without a GPU, with imports adjusted by one table."""
    if document == "002":
        pytest.importorskip("transformers", reason="a block makes Transformers' Trainer")
    environ = {**os.environ, "PYTHONPATH": str(seeds.ROOT), "STEPSCOPE_DIR": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.documents.runner", document],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    told = "\n".join(f"{document}:{line}\n{trace}" for line, trace in found["failed"].items())
    assert not found["failed"], told
    assert found["ran"] == USED[document]
    if document == "001":  # whose block names tensorboard_dir
        until(lambda: list((tmp_path / "logs").rglob("events.out.tfevents.*")), "event files of the run")


def test_what_cannot_run_is_listed():
    """Only what the table names is left out, and every entry of the table is needed."""
    every = [*seeds.blocks("python"), *seeds.blocks("bash")]
    assert {block.later for block in every} - {""} == set(seeds.LATER.values())
    assert sum(bool(block.later) for block in seeds.blocks("python")) == 2
