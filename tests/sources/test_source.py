"""What an argument such as RUN names."""

from __future__ import annotations

import json

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.sources.source import BASELINE, FILE, RUN, resolve, resolve_all


@pytest.fixture
def root(tmp_path):
    """Return a folder with one run, called first, of the project p."""
    with stepscope.init(project="p", name="first", dir=tmp_path / "runs") as run:
        run.log({"loss": 1.0})
    return tmp_path / "runs"


@pytest.fixture
def log(tmp_path):
    """Return a file that another tool has written."""
    rows = [{"loss": 2.0 - step / 10, "step": step, "learning_rate": 0.1} for step in range(1, 9)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows, "global_step": 8}))
    return str(path)


@pytest.mark.parametrize("name", ["latest", "first", "p/first"])
def test_a_run_is_found_by_every_name(root, name):
    """A run is named by its display name, by project and name, or as the latest."""
    found = resolve(name, root)
    assert (found.kind, found.past().name) == (RUN, "first")
    assert resolve(found.path) == found


def test_a_file_is_a_source_of_its_own(root, log):
    """A file that is no baseline belongs to another tool; opened, it reads like a run."""
    found = resolve(log, root)
    assert found.kind == FILE
    with found.opened() as past:
        assert past.series("loss").value[-1] == pytest.approx(1.2)
        scratch = past.path
    assert not scratch.exists()


def test_a_baseline_is_no_run(root, capsys):
    """A baseline is found by its name and its file, and cannot be opened as a run."""
    assert main(["baseline", "save", "good", "first", "--dir", str(root)]) == 0
    (named,) = resolve_all("good", root)
    assert named.kind == resolve(named.path).kind == BASELINE
    with pytest.raises(UsageError, match="it is a saved baseline"), named.opened():
        pass


def test_several_are_named_at_once(root, log):
    """A project, a pattern and a list with commas each name several sources."""
    assert [one.kind for one in resolve_all("p", root)] == [RUN]
    assert [one.kind for one in resolve_all(f"first,{log}", root)] == [RUN, FILE]
    assert [one.kind for one in resolve_all(f"{root}/p/*", root)] == [RUN]


def test_an_unknown_name_is_an_error(root):
    """A name that nothing has is refused with the remedy."""
    with pytest.raises(StepscopeError, match="stepscope runs"):
        resolve("nothing", root)


@pytest.mark.parametrize("command", [("show",), ("export", "--format", "csv"), ("report",)])
def test_commands_take_a_file_of_another_tool(log, command, capsys):
    """`show`, `export` and `report` take a file of another tool where they take a run."""
    assert main([*command, log]) == 0
    assert "loss" in capsys.readouterr().out
