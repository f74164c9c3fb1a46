from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.core import spawn


def test_arguments_keep_the_users_folder_out(monkeypatch):
    """The folder of the user's script and relative paths are no place to import from; ours is."""
    monkeypatch.setattr(sys, "path", ["/the/script", "relative", "", "/the/script", "/else"])
    _, _, _, package, module, paths, *values = spawn.arguments("some.module", "a", "b")
    assert paths.split("\x1f") == ["/else", str(Path(package).parent)]
    assert (module, values) == ("some.module", ["a", "b"])


def test_started_program_is_ours(tmp_path):
    """A user's random.py or stepscope.py in the working directory is not what our programs load."""
    for name in ("random.py", "json.py", "stepscope.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    command = [spawn.interpreter(), *spawn.arguments("stepscope.store.seal")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert "IndexError" in done.stderr  # main() of our module ran, and missed its arguments


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_no_interpreter(monkeypatch, executable):
    """A program that embeds Python, and so has no interpreter to start, is told so."""
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(spawn.SpawnError, match="interpreter"):
        spawn.interpreter()


def test_package_without_files(monkeypatch):
    """A package that does not lie in plain files cannot be started."""
    monkeypatch.setattr(spawn, "__file__", "/in/a/zip/stepscope/core/spawn.py")
    with pytest.raises(spawn.SpawnError, match="plain files"):
        spawn.interpreter()


def test_refused_process(monkeypatch):
    """A system that starts no process is an error of ours, with the system's reason."""

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with pytest.raises(spawn.SpawnError, match="no more processes"):
        spawn.start_detached("stepscope.store.seal")


def test_interpreter_that_fails(monkeypatch):
    """An interpreter that does not start is an error of ours."""
    monkeypatch.setattr(spawn, "_DETACH", "raise SystemExit(3)")
    with pytest.raises(spawn.SpawnError, match="did not start"):
        spawn.start_detached("stepscope.store.seal")


def test_nobody_waits_for_it(monkeypatch):
    """What is started is no child of ours: os.wait() meets nobody."""
    monkeypatch.setattr(spawn, "_DETACH", "import os\nif os.fork(): os._exit(0)\nos._exit(0)")
    spawn.start_detached("stepscope.store.seal")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
