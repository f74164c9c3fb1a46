from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli import main as program
from stepscope.cli.main import COMMANDS, build_parser, main
from stepscope.cli.text.table import Cell, Column, table
from stepscope.cli.text.terminal import Paint, bar, columns, sparkline
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.terminal_text import cut, plain, width_of
from stepscope.version import __version__

SOURCE = Path(program.__file__).parents[2]


def start(*arguments, stdout=subprocess.PIPE, **environ):
    """Run our interpreter with the package in its path."""
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), **environ}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environ, stdout=stdout, stderr=subprocess.PIPE, timeout=300, check=False)


def failing(error):
    def run(options):
        raise error

    return run


@pytest.fixture
def command(monkeypatch):
    """Return a function that puts another body under the command `runs`."""

    def put(run):
        monkeypatch.setattr("stepscope.cli.commands.runs.run", run)

    return put


def test_version(capsys):
    """`--version` prints the version."""
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"stepscope {__version__}\n")


def test_no_command_is_wrong_usage(capsys):
    """Without a command the help goes to stderr and the exit code is 2."""
    assert main([]) == 2
    assert "usage: stepscope" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["bogus"], ["runs", "--bogus"], ["runs", "-n", "x"], ["show"]])
def test_wrong_arguments_exit_with_2(arguments, capsys):
    """Unknown commands and options, wrong and missing values end with exit code 2."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


@pytest.mark.parametrize("name", ["runs", "show", "gc", "doctor"])
def test_docstring_is_the_help(name, capsys):
    """The docstring of a command's module is its help, and its first line stands in the list."""
    module = __import__(f"stepscope.cli.commands.{name}", fromlist=["run"])
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert module.__doc__.strip() in capsys.readouterr().out
    assert module.__doc__.partition("\n")[0].rstrip(".") in " ".join(build_parser().format_help().split())


def test_a_command_that_is_not_there_is_left_out():
    """A command whose module does not exist yet is not offered."""
    assert "imaginary" not in build_parser([*COMMANDS, "imaginary"]).format_help()


def test_only_the_chosen_command_is_imported():
    """A run of one command loads no other command, and listing runs loads neither numpy nor DuckDB."""
    code = "import sys; from stepscope.cli.main import main; main(['runs']); print(*sys.modules, file=sys.stderr)"
    modules = start("-c", code).stderr.decode().split()
    assert "stepscope.cli.commands.runs" in modules
    assert not {
        "stepscope.cli.commands.show",
        "stepscope.cli.commands.doctor",
        "stepscope.cli.commands.gc",
        "numpy",
        "duckdb",
    } & set(modules)


def test_it_runs_as_a_module():
    """`python -m stepscope` is the same program."""
    assert start("-m", "stepscope", "--version").stdout.decode() == f"stepscope {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StepscopeError("do it", "it is late", "wait"), 1, "stepscope: cannot do it: it is late; wait\n"),
        (UsageError("do it", "bad \x1b[31m\u202e", "mend it"), 2, "stepscope: cannot do it: bad �[31m�; mend it\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, None),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_what_goes_wrong_becomes_an_exit_code(command, capsys, error, code, message):
    """Our errors become one clean line on stderr and their exit code; an interrupt and a closed pipe are silent."""
    command(failing(error))
    assert main(["runs"]) == code
    said = capsys.readouterr().err
    assert said == message if message is not None else said.startswith("stepscope: cannot finish runs: ")


def test_a_closed_pipe_is_quiet():
    """When nobody reads any more the program ends without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    done = start("-m", "stepscope", "runs", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_terminal_without_unicode_gets_question_marks():
    """Characters that the output cannot hold are replaced; nothing fails."""
    done = start("-m", "stepscope", "doctor", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    "evil", ["\x1b]0;x\x07", "a\rb", "a\nb", "\u202eabc", "\x9b31m", "\u2066x\u2069", "\x00", "\ud800"]
)
def test_text_of_runs_cannot_act(evil):
    """Control characters, line ends, ESC, bidi overrides and surrogates never reach a terminal."""
    text = plain(evil)
    assert not set(text) & set("\x1b\x07\r\n\x00\x9b\u202e\u2066\u2069\ud800")
    text.encode()


def test_text_is_cut_by_what_is_seen():
    """Wide characters count two columns and marks none; what is cut ends in an ellipsis and fits."""
    assert cut("数据集名称", 6) == "数据…"
    assert width_of("e\u0301") == 1
    assert cut("abc", 3) == "abc"
    assert [width_of(cut("数据集 name", width)) <= width for width in range(1, 12)] == [True] * 11


def test_tables_fit_and_drop_empty_columns():
    """A table is no wider than told: loose columns are cut, empty ones left out, the others never touched."""
    shape = (Column("id"), Column("name", narrowest=4), Column("none"), Column("n", right=True))
    lines = table(shape, [["abc", "x" * 50, "", "1"], ["de", "y", "", Cell("22", "red")]], 20, Paint())
    assert lines == ["id   name          n", "abc  xxxxxxxxxx…   1", "de   y            22"]
    assert "none" not in lines[0]


def test_optional_columns_go_where_there_is_no_room():
    """The last optional column goes first, and only if cutting does not help."""
    shape = (Column("id"), Column("one", optional=True), Column("two", optional=True))
    row = ["x" * 10, "y" * 10, "z" * 10]
    assert [len(table(shape, [row], width, Paint())[1].split()) for width in (40, 30, 15)] == [3, 2, 1]


def test_colour_only_for_a_terminal(monkeypatch):
    """There is colour on a terminal, and none in a pipe, with NO_COLOR, or on a dumb terminal."""

    class Terminal:
        def isatty(self):
            return True

    assert Paint.of(Terminal(), {})("x", "bold red") == "\x1b[1;31mx\x1b[0m"
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert Paint.of(Terminal(), environ)("x", "red") == "x"
    assert not Paint.of(sys.__stdout__, {"NO_COLOR": "1"}).enabled


@pytest.mark.parametrize(("told", "found"), [("80", 80), ("10", 60), ("x", 120), ("", 120), ("99999999999", 120)])
def test_width_is_as_told(told, found):
    """COLUMNS says the width, within reason; a pipe has 120 columns."""
    assert columns({"COLUMNS": told}) == found


def test_pictures_show_what_is_not_finite():
    """A sparkline goes from lowest to highest and marks what is not finite; a bar has the length of its share."""
    assert sparkline([0.0, None, 1.0]) == "▁!█"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert (bar(0.5, 4), bar(0.0, 2), bar(1.5, 2)) == ("██  ", "  ", "██")
