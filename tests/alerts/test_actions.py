from __future__ import annotations

import pytest

from stepscope.alerts.actions import Action, actions_of, commands_of
from stepscope.core.errors import UsageError


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (None, ()),
        ("stop", (Action("stop"),)),
        (["checkpoint", {"profile": {"steps": 5}}], (Action("checkpoint"), Action("profile", {"steps": 5}))),
        ([{"profile": 7}], (Action("profile", {"steps": 7}),)),
        ([{"sample": {"interval": 0.1, "seconds": 30}}], (Action("sample", {"interval": 0.1, "seconds": 30.0}),)),
        ([{"run": "requeue"}, "run:requeue"], (Action("run", {"command": "requeue"}),) * 2),
    ],
)
def test_actions_are_data(data, found):
    """A rule names what to do; options are checked."""
    assert actions_of(data) == found


@pytest.mark.parametrize(
    "data",
    [
        "explode",
        [3],
        {"run": ["rm", "-rf", "/"]},
        {"profile": {"steps": 10**9}},
        {"stop": {"now": True}},
        {"sample": "x"},
    ],
)
def test_a_rule_cannot_bring_a_command_of_its_own(data):
    """Unknown actions, options out of range and commands in a rule are refused."""
    with pytest.raises(UsageError):
        actions_of(data)


def test_commands_stand_in_the_configuration():
    """As words, without a shell; a wrong one is told and the others stay."""
    given = [
        {"name": "requeue", "command": ["sbatch", "job.sh"], "seconds": 5},
        {"name": "x", "command": "rm -rf /"},
        {"command": ["a"]},
        {"name": "y", "command": ["a"], "seconds": 1e9},
    ]
    found, problems = commands_of({"alerting.commands": given})
    assert list(found) == ["requeue"]
    assert found["requeue"].words == ("sbatch", "job.sh")
    assert len(problems) == 3
