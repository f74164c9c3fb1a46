"""The documentation is tested: its code runs, its commands exist, and every command is documented."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import blocks, commands, page_program
from tests.integration.processes import patient_site

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page_id(page):
    return str(page.relative_to(ROOT))


def parser():
    from stepscope.cli.main import build_parser

    return build_parser()


def accepts(arguments):
    try:
        parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code == 0
    return True


def command_names():
    actions = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return sorted(name for action in actions for name in action.choices)


@pytest.mark.parametrize("page", [page for page in PAGES if page_program(page)], ids=page_id)
@pytest.mark.slow
def test_python_blocks_run(page, tmp_path):
    """The Python blocks of a page, one after another in one process, run without an error or a warning."""
    program = tmp_path / page.name.replace(".md", ".py")
    program.write_text(page_program(page), encoding="utf-8")
    if re.search(r"^(?:import|from) torch\b", page_program(page), re.MULTILINE):
        pytest.importorskip("torch", reason="the page's code trains with torch")
    paths = os.pathsep.join([patient_site(tmp_path), str(ROOT / "src")])
    environment = {**os.environ, "STEPSCOPE_DIR": str(tmp_path / "runs"), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{page_id(page)} (line numbers are the page's):\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_parse(page):
    """Every `stepscope` command in a shell block is one that the command line accepts."""
    shells = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language in {"bash", "console"}]
    calls = [(block.line, call) for block in shells for call in commands(block)]
    refused = [f"line {line}: stepscope {' '.join(call)}" for line, call in calls if not accepts(call)]
    assert refused == []


def test_every_command_is_documented():
    """Every command of the command line has a section in docs/reference/cli.md."""
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#{2,3} (.*)$", text, re.MULTILINE)
    documented = {word for heading in headings for word in re.findall(r"[\w-]+", heading)}
    assert [name for name in command_names() if name not in documented] == []


def test_no_command_is_invented():
    """Every section of docs/reference/cli.md that is named after a command names one that exists."""
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    named = re.findall(r"^#{2,3} `?stepscope ([\w-]+)", text, re.MULTILINE)
    assert [name for name in named if name not in command_names()] == []


def test_pages_are_ordered_by_purpose():
    """The navigation has four sections, one per purpose, each with the pages of its own folder."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"][1:]
    folders = {
        name: {Path(page).parent.name for entry in pages for page in entry.values()}
        for section in sections
        for name, pages in section.items()
    }
    assert folders == {"Start": {"start"}, "How to": {"howto"}, "Concepts": {"concepts"}, "Reference": {"reference"}}


WORDS = ["run", "attempt", "rank", "step", "phase", "metric", "event", "alert", "finding"]
WORDS += ["verdict", "watcher", "ring", "seal", "baseline", "gate", "ledger"]


def test_glossary_defines_each_word_once():
    """The glossary has one meaning for each word that the other pages use."""
    text = (ROOT / "docs" / "concepts" / "glossary.md").read_text(encoding="utf-8")
    defined = re.findall(r"^\| \*\*([\w ]+)\*\* \| \S", text, re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert set(WORDS) <= set(defined)


def test_block_lines_are_the_pages():
    """A block knows its line in the page, and the program made of a page keeps line numbers."""
    [block] = blocks("# Title\n\n```python\nx = 1\n```\n")
    assert (block.line, block.code, block.runs) == (4, "x = 1\n", True)


def test_block_is_left_out_only_with_a_reason():
    """A block is left out by a comment right above it that gives a reason, and by nothing else."""
    fence = "```python\nx\n```\n"
    assert [block.runs for block in blocks(f"<!-- not run: needs a GPU -->\n{fence}")] == [False]
    assert [block.runs for block in blocks(f"<!-- not run: -->\n{fence}")] == [True]
    assert [block.runs for block in blocks(f"<!-- not run: needs a GPU -->\ntext\n{fence}")] == [True]


@pytest.mark.parametrize(
    ("language", "code", "found"),
    [
        ("bash", "stepscope runs  # newest first", [["runs"]]),
        ("bash", "cd x && stepscope show a | head", [["show", "a"]]),
        ("bash", 'stepscope sql "SELECT 1 > 0"', [["sql", "SELECT 1 > 0"]]),
        ("bash", "stepscope export a \\\n  --format csv > out.csv", [["export", "a", "--format", "csv"]]),
        ("console", "$ stepscope runs\nstepscope is not a command here", [["runs"]]),
    ],
)
def test_commands_are_found(language, code, found):
    """Commands are found behind prompts, in pipes and lists, over continued lines, and without their comments."""
    [block] = blocks(f"```{language}\n{code}\n```\n")
    assert list(commands(block)) == found


def test_site_loads_nothing_from_elsewhere(tmp_path):
    """The built documentation refers to no script, style, font or picture on another host."""
    pytest.importorskip("mkdocs", reason="builds the site; it comes with the extra test")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//", text), page.name
        assert not re.findall(r"<link[^>]+rel=\"?(?:stylesheet|preconnect|icon)[^>]+href=\"?(?:https?:)?//", text), (
            page.name
        )


@pytest.mark.promise("S0-088")
@pytest.mark.parametrize("topic", ["profiling", "benchmarking", "memory", "alerts", "distributed", "quickstart"])
def test_every_guide_is_there(topic):
    """The topics that the documents link to have a page of their own, with commands to type."""
    [page] = (ROOT / "docs").glob(f"*/{topic}.md")
    text = page.read_text(encoding="utf-8")
    assert any("stepscope" in block.code for block in blocks(text))
