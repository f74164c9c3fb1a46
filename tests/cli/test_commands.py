"""What holds for every command and action, found by walking the tree of the parser: nobody can forget one."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from stepscope.cli.command import FAILED, FINE, GATE, USAGE
from stepscope.cli.main import main
from stepscope.cli.parser import COMMANDS, EXAMPLES, GROUPS, build_parser, commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
TREE = {words: parser for words, parser in commands_of(build_parser()) if words}
ENDS = {
    words: parser
    for words, parser in TREE.items()
    if not any(more[: len(words)] == words for more in TREE if more != words)
}
"""Commands that do something: without those that only hold actions."""
WITHOUT_JSON = {
    "demo": "shows a training",
    "run": "its output is the script's",
    "serve": "serves until it is ended",
    "report": "--json F writes the report as JSON",
    "export": "--format json",
    "completion": "prints a script",
}
"""Commands that have no `--json` to be switched on, and why."""
FORM = re.compile(r"^stepscope: cannot [^\n]+: [^\n]+; [^\n]+$", re.MULTILINE)


def spelled(words):
    return " ".join(words)


def needed(words):
    return [action for action in ENDS[words]._actions if not action.option_strings and action.nargs not in {"?", "*"}]


def options_of(parser):
    return {name: action for action in parser._actions for name in action.option_strings}


@pytest.mark.parametrize("words", TREE, ids=spelled)
def test_help_has_an_example_that_parses(words, capsys):
    """`--help` ends with examples, and each of them is a command line that the program takes."""
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert re.search(r"^examples?:\n  \S", text, re.MULTILINE)
    for line in EXAMPLES[spelled(words)]:
        assert f"  {line}\n" in text
        simple = line.partition(" | ")[0].partition(" > ")[0].partition("  #")[0]
        simple = simple.removeprefix('eval "$(').removesuffix(')"').replace(')"', "")
        if simple.startswith("stepscope "):
            build_parser().parse_args(shlex.split(simple)[1:])


def test_no_example_is_of_a_command_that_is_not_there():
    """Examples belong to commands and actions of the tree."""
    assert set(EXAMPLES) == {spelled(words) for words in TREE}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_section_and_a_row(name):
    """docs/reference/cli.md has a section of each command with something to type, and a row in its table."""
    assert f"| [`{name}`](#stepscope-{name}) |" in PAGE
    section = PAGE.partition(f"\n## stepscope {name}\n")[2].partition("\n## ")[0]
    assert re.search(rf"^(\$ )?(eval \"\$\()?stepscope {name}\b", section, re.MULTILINE), name


def test_the_table_is_grouped_as_the_help():
    """The table of docs/reference/cli.md has the groups of `stepscope --help`, in their order."""
    rows = re.findall(r"^\| ([^|]*?) ?\| \[`(\w+)`\]", PAGE, re.MULTILINE)
    assert [name for _, name in rows] == list(COMMANDS)
    assert [title for title, _ in rows if title] == list(GROUPS)
    text = build_parser().format_help()
    places = [text.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)


@pytest.mark.parametrize("words", ENDS, ids=spelled)
def test_wrong_usage_is_said_in_our_form(words, capsys):
    """An unknown option ends every command with exit code 2, its usage, and one line: cannot, why, what to do."""
    # All that `run` does not know is the script's.
    arguments = ["run", "--project"] if words == ("run",) else [*words, "--no-such-option"]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr()
    assert (stop.value.code, said.out) == (USAGE, "")
    assert said.err.startswith(f"usage: stepscope {words[0]}")
    assert FORM.search(said.err)
    assert "Traceback" not in said.err


@pytest.mark.parametrize("words", [words for words in ENDS if needed(words)], ids=spelled)
def test_a_run_or_file_that_is_not_there_is_said_in_our_form(words, tmp_path, monkeypatch, capsys):
    """A command that needs a run or a file says that there is none: exit code 1 or 2, nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_DIR", str(tmp_path / "none"))
    required = [action for action in ENDS[words]._actions if action.option_strings and action.required]
    values = [word for action in required for word in (action.option_strings[0], next(iter(action.choices)))]
    code = main([*words, *values, *(["no-such-thing"] * len(needed(words)))])
    said = capsys.readouterr()
    assert code in {FAILED, USAGE}, said
    assert said.out == ""
    assert FORM.search(said.err), said.err


@pytest.mark.parametrize("words", ENDS, ids=spelled)
def test_facts_come_as_json_where_there_are_any(words):
    """Every command that tells facts has `--json`; the others are named here with the reason."""
    own = options_of(ENDS[words])
    if spelled(words) in WITHOUT_JSON:
        assert not isinstance(own.get("--json"), argparse._StoreTrueAction)
    else:
        assert isinstance(own["--json"], argparse._StoreTrueAction)


def test_exit_codes_are_documented_and_stay():
    """The codes are the ones of docs/reference/cli.md and of `stepscope --help`."""
    assert (FINE, FAILED, USAGE, GATE) == (0, 1, 2, 3)
    table = PAGE.partition("| exit code | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == ["0", "1", "2", "3", "130", "141", "other"]
    assert "0 success, 1 failure, 2 wrong usage, 3 a gate failed" in build_parser().format_help()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("exprt", "export"), ("shwo", "show"), ("show x --jsn", "--json"), ("compare a b --metrc=loss", "--metric")],
)
def test_a_slip_is_answered_with_what_was_meant(wrong, right, capsys):
    """A command or option that is nearly one is named."""
    with pytest.raises(SystemExit):
        main(wrong.split())
    assert f"did you mean '{right}'?" in capsys.readouterr().err
