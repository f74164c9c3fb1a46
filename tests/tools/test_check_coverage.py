"""The coverage of each room has a floor."""

from __future__ import annotations

import json

import pytest

import check_coverage


@pytest.fixture
def check(tmp_path, capsys):
    """Return a function that checks a report of some files and returns exit code and output."""

    def run(**covered):
        files = {
            f"src/stepscope/{path.replace('__', '/')}.py": {
                "summary": {"num_statements": 60, "covered_lines": lines, "num_branches": 40, "covered_branches": 40}
            }
            for path, lines in covered.items()
        }
        report = tmp_path / "coverage.json"
        report.write_text(json.dumps({"files": files}))
        code = check_coverage.main([str(report)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.mark.parametrize(
    ("path", "lines", "code"),
    [
        ("cli__main", 45, 0),
        ("cli__main", 44, 1),
        ("cli__commands__show", 44, 1),
        ("store__tail", 55, 0),
        ("store__tail", 54, 1),
        ("alerts__delivery__outbox", 54, 1),
        ("alerts__actions", 54, 0),
        ("web__guard", 54, 1),
        ("web__live", 54, 0),
        ("monitor", 44, 1),
    ],
)
def test_each_room_has_a_floor(check, path, lines, code):
    """A room below 85 % of lines and branches fails; where a fault costs rows, alerts or safety, below 95 %."""
    assert check(**{path: lines})[0] == code


def test_files_of_a_room_are_counted_together(check):
    """A room is judged as a whole, its folders included, and each room has a line."""
    code, said = check(store__tail=60, store__deep__seal=50, tui__app=60)
    assert code == 1 - (60 + 50 + 80 >= 0.95 * 200)
    assert "store              95.0 %  floor 95 %\n" in said
    assert "tui               100.0 %  floor 85 %\n" in said


def test_rooms_below_the_floor_are_named(check):
    """The last line names the rooms and the command that lists the lines."""
    assert "below the floor: cli, core; `coverage report -m" in check(cli__main=0, core__ring=0, tui__app=60)[1]
