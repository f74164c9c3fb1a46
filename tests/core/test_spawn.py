from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.core import spawn
from tests.integration.processes import until

pytestmark = pytest.mark.processes


def test_arguments_keep_the_users_folder_out(monkeypatch):
    """The folder of the user's script and relative paths are no place to import from; ours is."""
    monkeypatch.setattr(sys, "path", ["/the/script", "relative", "", "/the/script", "/else"])
    _, _, _, package, module, paths, _, *values = spawn.arguments("some.module", "a", "b")
    assert paths.split("\x1f") == ["/else", str(Path(package).parent)]
    assert (module, values) == ("some.module", ["a", "b"])


def test_started_program_is_ours(tmp_path):
    """A user's random.py or stepscope.py in the working directory is not what our programs load."""
    for name in ("random.py", "json.py", "stepscope.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    command = [spawn.interpreter(), *spawn.arguments("stepscope.store.seal")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
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


@pytest.fixture(params=["/bin/sh", "/no/shell"])
def launcher(request, monkeypatch):
    """Both ways to fork twice: by a shell, and where there is none by an interpreter."""
    monkeypatch.setattr(spawn, "_SHELL", request.param)
    return request.param


def test_launcher_that_fails(launcher, monkeypatch):
    """A launcher that does not get to its fork is an error of ours."""
    monkeypatch.setattr(spawn, "_DETACH", "raise SystemExit(3)")
    monkeypatch.setattr(spawn, "_SHELL_DETACH", "exit 3")
    with pytest.raises(spawn.SpawnError, match="did not start"):
        spawn.start_detached("stepscope.store.seal")


def children():
    """The children of this process; other tests may have left some, such as multiprocessing's tracker."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


@pytest.mark.usefixtures("launcher")
def test_nobody_waits_for_it():
    """What is started is no child of ours: os.wait() does not meet it."""
    before = children()
    spawn.start_detached("stepscope.store.seal")
    assert children() <= before


def word_of(tmp_path, monkeypatch, text, *values):
    """Start a program that writes the value of an expression into a file; return what it wrote."""
    (tmp_path / "program.py").write_text(
        f"import os, signal\ndef main(values):\n    text = {text}\n"
        "    open(values[0] + '.new', 'w').write(text)\n    os.rename(values[0] + '.new', values[0])\n"
    )
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    told = tmp_path / "told"
    spawn.start_detached("program", str(told), *values)
    until(told.exists, "its word")
    return told.read_text()


@pytest.mark.usefixtures("launcher")
def test_place_of_a_started_program(tmp_path, monkeypatch):
    """A started program lies in the root directory and leads or belongs to a session that is not ours."""
    text = "f'{os.getcwd()} {os.getsid(0) == int(values[1])}'"
    assert word_of(tmp_path, monkeypatch, text, str(os.getsid(0))) == "/ False"


@pytest.mark.usefixtures("launcher")
def test_started_program_can_see_our_end(tmp_path, monkeypatch):
    """The standard input of a started program is a pidfd of this very process."""
    assert f"Pid:\t{os.getpid()}\n" in word_of(tmp_path, monkeypatch, "open('/proc/self/fdinfo/0').read()")


@pytest.mark.usefixtures("launcher")
def test_a_started_program_takes_signals(tmp_path, monkeypatch):
    """Signals that the user's program has blocked reach ours: it can be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        assert word_of(tmp_path, monkeypatch, "str(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))") == "0"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
