"""What a person can type."""

from __future__ import annotations

import os

import pytest

from stepscope.core.command_line import typed


@pytest.fixture
def project(tmp_path):
    """A folder with an environment that has our program."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "stepscope"):
        (folder / name).touch(mode=0o755)
    return tmp_path


def program(project, path, cwd=None):
    return typed(str(project / ".venv/bin/python"), str(path), str(cwd or project))


def test_an_environment_that_is_not_active_is_named_by_its_path(project):
    """Where the shell does not find our program, or finds another one, its path is told, from here."""
    assert program(project, "/nowhere") == ".venv/bin/stepscope"
    other = project / "other"
    other.mkdir()
    (other / "stepscope").touch(mode=0o755)
    assert program(project, other) == ".venv/bin/stepscope"
    assert program(project, "/nowhere", project / ".venv/bin") == "./stepscope"


def test_an_active_environment_needs_no_path(project):
    """Where the shell finds this very program, its name is enough."""
    assert program(project, project / ".venv/bin") == "stepscope"


def test_without_a_program_the_module_is_run(project):
    """An interpreter without our program beside it runs us as a module."""
    os.unlink(project / ".venv/bin/stepscope")
    assert program(project, "/nowhere") == ".venv/bin/python -m stepscope"
