from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepscope.cli.commands.completion import candidates, matching_runs
from stepscope.cli.main import COMMANDS, main
from stepscope.cli.parser import build_parser, commands_of, subcommands
from tests.exporters.recorded import make_run
from tests.fakes import readable

CASES = [
    ("stepscope expo", {"export"}),
    ("stepscope export --for", {"--format", "--force"}),
    ("stepscope export latest --format pa", {"parquet"}),
    ("stepscope alerts ba", {"backtest"}),
    ("stepscope baseline s", {"save", "show"}),
    ("stepscope completion ", {"bash", "zsh", "fish"}),
    ("stepscope show --dir {root} 2026-a", {"2026-a1", "2026-a2"}),
    ("stepscope alerts ack --dir {root} 2026-b", {"2026-b1"}),
    ("stepscope show --dir {root} la", {"latest"}),
]
HARNESS = """
eval "$(stepscope completion bash)"
complete -p stepscope >/dev/null || exit 3
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_stepscope
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def root(tmp_path):
    """Return a folder with three runs."""
    for name in ("2026-a1", "2026-a2", "2026-b1"):
        make_run(tmp_path / "runs", name)
    return tmp_path / "runs"


@pytest.fixture
def environ(tmp_path):
    """Return an environment in which `stepscope` is ours."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "stepscope"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stepscope "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "xterm"}


def need(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")


def test_every_command_action_and_option_is_offered():
    """After the words of each command come its actions, and after a dash its options."""
    assert {word for word, _ in candidates([""])} == set(COMMANDS)
    for words, parser in commands_of(build_parser()):
        actions, _ = subcommands(parser)
        assert not actions or {word for word, _ in candidates([*words, ""])} == set(actions)
        shown = {name for each in parser._actions if each.help != argparse.SUPPRESS for name in each.option_strings}
        assert {word for word, _ in candidates([*words, "-"])} == shown, words


def test_values_after_an_equals_sign():
    """An option and its value may be one word; the candidates repeat the option."""
    assert candidates(["export", "latest", "--format=pa"]) == [("--format=parquet", "")]
    assert candidates(["export", "latest", "--output=x"]) == [("@files", "")]
    assert candidates(["runs", "--unknown", ""]) == candidates(["runs", "--json", ""])


def test_runs_are_found_by_id_and_by_name(root):
    """Ids that begin so come newest first; where there is none, those whose name begins so."""
    assert [one for one, _ in matching_runs("2026-a", str(root))] == ["2026-a2", "2026-a1"]
    assert next(one for one, _ in matching_runs("", str(root))) == "latest"
    meta = root / "mnist" / "2026-b1" / "run.json"
    meta.write_text(
        meta.read_text()
        .replace('"name":"2026-b1"', '"name":"Warm start"')
        .replace('"name": "2026-b1"', '"name": "Warm start"')
    )
    assert matching_runs("warm", str(root)) == [("2026-b1", "Warm start")]
    assert matching_runs("nothing", str(root)) == []


def test_looking_runs_up_loads_little(root):
    """Completion of runs is quick because neither numpy nor DuckDB is loaded for it."""
    code = (
        "import sys; from stepscope.cli.main import main\n"
        f"main(['completion', '--runs', '2026-b', '--dir', {str(root)!r}])\n"
        "assert not {'numpy', 'duckdb', 'rich', 'textual'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2026-b1\t2026-b1\n"


def test_a_shell_must_be_named(capsys):
    """Without a shell the command says which there are."""
    assert main(["completion"]) == 2
    assert "cannot print a script for the shell: no shell is named; name one of bash" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash(line, expected, root, environ):
    """A real bash offers exactly these."""
    need("bash")
    words = line.format(root=root).split(" ")
    command = ["bash", "--norc", "-c", HARNESS, "bash", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert (set(done.stdout.split()), done.stderr) == (expected, "")


def test_bash_after_an_equals_sign(environ):
    """bash splits `--format=p` into three words; the value is completed nevertheless. Files are offered for files."""
    need("bash")
    for words, expected in (
        (["export", "x", "--format", "=", "p"], {"parquet"}),
        (["trace", "/etc/pass"], {"/etc/passwd"}),
    ):
        command = ["bash", "--norc", "-c", HARNESS, "bash", "stepscope", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
        assert set(done.stdout.split()) >= expected


@pytest.mark.slow
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish(line, expected, root, environ):
    """A real fish offers exactly these."""
    need("fish")
    code = f"stepscope completion fish | source; complete -C '{line.format(root=root)}'"
    done = subprocess.run(["fish", "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert {text.partition("\t")[0] for text in done.stdout.splitlines()} == expected


@pytest.mark.slow
@pytest.mark.parametrize(("line", "expected"), [CASES[0], CASES[1], CASES[6], CASES[7]])
def test_zsh(line, expected, root, environ):
    """A real zsh, at its prompt, completes the word or lists these."""
    need("zsh")
    shown = zsh(line.format(root=root), environ, lambda text: all(word in text for word in expected))
    assert all(word in shown for word in expected), shown


def zsh(line, environ, done):
    """Return what an interactive zsh shows after the line and a tab."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**environ, "ZDOTDIR": "/nonexistent"})
    try:
        setup = (
            "PS1='> '; unsetopt zle_bracketed_paste; autoload -Uz compinit && compinit -u -D;"
            ' eval "$(stepscope completion zsh)"; echo REA""DY\n'
        )
        os.write(descriptor, setup.encode())
        told(descriptor, lambda text: "READY\r" in text)
        os.write(descriptor, f"{line}\t".encode())
        return told(descriptor, done)
    finally:
        os.close(descriptor)
        os.waitpid(pid, 0)


def told(descriptor, done):
    """Return what a terminal shows, without what only moves the cursor, once it is what is waited for."""
    text, end = "", time.monotonic() + 60
    while not done(text) and time.monotonic() < end:
        if readable(descriptor, 0.5):
            text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(descriptor, 65536).decode("utf-8", "replace"))
    return text


def test_the_examples_of_the_docs_are_those_of_the_help():
    """docs/reference/cli.md tells how to switch it on in each shell."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    assert all(f"stepscope completion {shell}" in text for shell in ("bash", "zsh", "fish"))
