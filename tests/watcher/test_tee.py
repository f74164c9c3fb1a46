from __future__ import annotations

import subprocess
import sys
import time

import pytest

from bench.synthetic import WRITER, seal_unit, small_run
from stepscope.exporters.sinks.address import address_of
from stepscope.store.layout import RunFolder
from stepscope.store.sinks import DENIED, WAITING, SinkState
from stepscope.watcher.tee import Tee
from tests.exporters.sinks.web_server import Reply, WebServer
from tests.integration.processes import until

pytestmark = pytest.mark.processes


@pytest.fixture
def folder(tmp_path):
    """A finished run of ten rows."""
    small_run(tmp_path / "project" / "run", "run", 9)
    seal_unit(tmp_path / "project" / "run", 2, 10, 0, 0, 10)
    return RunFolder(tmp_path / "project" / "run")


@pytest.mark.parametrize("found", [None, WAITING, DENIED])
def test_a_sink_is_not_given_up_before_it_was_tried(folder, found):
    """Neither a first answer that takes a moment, nor what an earlier command was told, ends the sending."""
    with WebServer(Reply(how="hang")) as server:
        address = address_of(f"otlp+http://127.0.0.1:{server.port}")
        if found:
            SinkState(WRITER.node, address.key, state=found, why="no", since=1.0).save(folder)
        tee = Tee(folder, [address], print, once=True)
        tee.look()
        until(lambda: server.requests, "the first request")
        assert tee.stuck(time.time(), 60.0) == []
        assert tee.stuck(time.time() + 61.0, 60.0) == tee.lanes()
        tee.close()


def test_a_sink_that_denies_us_again_is_given_up(folder):
    """A command that meets the same denial as the one before it ends, too."""
    with WebServer(Reply(401, b"no")) as server:
        address = address_of(f"otlp+http://127.0.0.1:{server.port}")
        SinkState(WRITER.node, address.key, state=DENIED, why="the server answered 401: no", since=1.0).save(folder)
        tee = Tee(folder, [address], print, once=True)
        tee.look()
        until(lambda: tee.stuck(time.time(), 60.0), "the denial")
        tee.close()


def test_an_export_to_a_sink_prints_no_complaint(folder):
    """The command closes what it has opened: standard error stays empty."""
    with WebServer(Reply(200, b"", {"Content-Type": "application/x-protobuf"})) as server:
        command = ["-m", "stepscope", "export", str(folder.path), "--to", f"otlp+http://127.0.0.1:{server.port}"]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "10 rows sent" in done.stdout
