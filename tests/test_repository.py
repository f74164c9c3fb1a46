"""The repository keeps its own rules: what it ships, names and says agrees with itself."""

from __future__ import annotations

import ast
import email
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import check_errors
import check_layers
import check_shape
import check_words
import forbidden
import promises
from sources import package_modules

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stepscope"
MODULE_OF = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml", "prometheus-client": "prometheus_client"}
OPTIONAL = {"torch", "transformers", "accelerate", "matplotlib", "pandas", "polars", "pyarrow", "typing_extensions"} | {
    "wandb"
}
TARGETS = ["demo", "test", "check", "bench", "docs", "pictures", "promises", "clean"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def version():
    return re.search(r'__version__ = "(.+)"', read("src/stepscope/version.py"))[1]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Build the wheel with the declared backend, without a network, and open it."""
    pytest.importorskip("hatchling", reason="builds the wheel; it comes with the extra test")
    folder = tmp_path_factory.mktemp("wheel")
    program = f"from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, timeout=300)
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="session")
def metadata(wheel):
    """Return the wheel's metadata."""
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
    return email.message_from_bytes(wheel.read(name))


@pytest.mark.promise("S1-018")
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=lambda command: command[0])
def test_style_is_clean(command):
    """The linter with every rule on, and the formatter, find nothing; they are stricter than flake8 and black."""
    pytest.importorskip("ruff", reason="ruff comes with the extra dev")
    arguments = [sys.executable, "-m", "ruff", *command, "--no-cache", "."]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [check_layers, check_errors, check_shape, check_words], ids=lambda check: check.__name__
)
def test_checks_pass(check, capsys):
    """The package passes its own checks of layers, errors, shape and words."""
    assert check.main([str(ROOT)]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_promise_markers_name_promises(capsys):
    """Every promise marker names a promise of the documents."""
    assert promises.main(["--markers"]) == 0, capsys.readouterr().err


def test_wheel_holds_the_package_and_nothing_else(wheel):
    """The wheel holds every file of the package, the type marker and the licence, and no test or tool."""
    names = set(wheel.namelist())
    files = {str(path.relative_to(ROOT / "src")) for path in SOURCE.rglob("*.py")}
    assert files | {"stepscope/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {"stepscope", f"stepscope-{version()}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.promise("S1-014", "X-12")
def test_python_floor_is_stated_and_one(metadata):
    """The lowest Python is 3.10 in the metadata, the linter's target and the README."""
    assert metadata["Requires-Python"] == ">=3.10"
    assert 'target-version = "py310"' in read("pyproject.toml")
    assert "Python 3.10 or newer" in read("README.md")
    assert "Python 3.10 and torch 2.1 are the oldest supported versions" in read("docs/reference/torch.md")
    assert 'torch = ["torch>=2.1"]' in read("pyproject.toml")


def test_metadata_is_right(metadata, wheel):
    """The distribution is called stepscope, has the package's version and licence, and one command."""
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (
        "stepscope",
        version(),
        "Apache-2.0",
    )
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert wheel.read(name).decode().split() == ["[console_scripts]", "stepscope", "=", "stepscope.cli.main:main"]


def test_every_extra_of_the_design_exists(metadata):
    """The extras are those of the design, and the ones for tests, development and benchmarks."""
    design = "torch lightning transformers ray tensorboard mlflow wandb clickhouse png arrow"
    assert set(metadata.get_all("Provides-Extra")) == {*design.split(), "test", "dev", "bench"}


@pytest.mark.slow
def test_dependencies_are_those_that_are_imported(metadata):
    """The base install brings what the package imports, and nothing that it does not import; the rest is optional."""
    lines = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    declared = {MODULE_OF.get(name, name) for name in (re.match(r"[\w-]+", line)[0].lower() for line in lines)}
    nodes = [node for module in package_modules() for node in ast.walk(module.tree)]
    imported = {name.partition(".")[0] for node in nodes for name in forbidden.imported(node)}
    foreign = imported - set(sys.stdlib_module_names) - {"stepscope"}
    assert declared <= foreign
    assert foreign - declared <= OPTIONAL


@pytest.mark.promise("S1-017")
@pytest.mark.parametrize(
    "path",
    [
        "scripts/monitor_training.py",
        "configs/monitoring_config.yaml",
        "examples/integration_example.py",
        "tests/test_performance_monitor.py",
        "tests/test_metrics_collector.py",
    ],
)
def test_files_of_the_documents_are_there(path):
    """Every file that a document tells people to look at exists, and says something."""
    assert len(read(path).splitlines()) > 10


@pytest.mark.promise("S1-016")
@pytest.mark.parametrize(
    ("name", "line"), [("requirements-monitoring.txt", "."), ("requirements-dev.txt", "-e .[dev]")]
)
def test_requirement_files_are_thin(name, line):
    """The requirement files of the documents exist and only point at pyproject.toml."""
    assert [text for text in read(name).splitlines() if not text.startswith("#")] == [line]


def test_changelog_has_this_version():
    """The changelog has a section for the version, below one for what comes."""
    headings = re.findall(r"^## \[(.+?)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", version()]


def test_security_page_says_what_is_asked():
    """SECURITY.md gives a private route, the supported versions and the promises."""
    text = read("SECURITY.md")
    supported = version().rpartition(".")[0] + ".x"
    for phrase in [
        "Report a vulnerability",
        "privately",
        f"| {supported} | yes |",
        "0700",
        "0600",
        "no network",
        "no pickle",
    ]:
        assert phrase in text


def test_rooms_in_the_documentation_are_the_checked_ones():
    """The room table of docs/concepts/architecture.md has the layers that are checked, and knows which rooms exist."""
    rows = re.findall(r"^\| `(\w+)` \| (\d) \| (now|planned) \|", read("docs/concepts/architecture.md"), re.MULTILINE)
    special = {check_layers.FACE, check_layers.TOP}
    assert {name: int(layer) for name, layer, _ in rows} == {
        name: layer for name, layer in check_layers.LAYERS.items() if name not in special
    }
    built = {name for name, _, _ in rows if any((SOURCE / name).glob("*.py")) or (SOURCE / f"{name}.py").exists()}
    assert {name for name, _, state in rows if state == "now"} == built


def test_rooms_in_the_readme_exist():
    """Every room that the README links to is there, and every room that is there is linked to."""
    linked = set(re.findall(r"\(src/stepscope/(\w+)\)", read("README.md")))
    assert linked == {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_the_top_pages_lead_somewhere(page):
    """Every relative link of the top pages leads to a file."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", read(page))
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_readme_starts_with_the_four_things():
    """The README's first screen has a sentence, a picture, the commands to run and the overhead with its command."""
    screen = "\n".join(read("README.md").splitlines()[:20])
    for part in ["Stepscope watches", "docs/images/", "make demo", "make test", "Overhead:", "make bench"]:
        assert part in screen


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_target(target):
    """The Makefile has every command that the pages name."""
    assert re.search(rf"^{target}:", read("Makefile"), re.MULTILINE)
    assert re.search(rf"^\.PHONY:.*\b{target}\b", read("Makefile"), re.MULTILINE)


def test_ci_runs_what_developers_run():
    """CI is executable, stops at the first failure, and is the same two commands."""
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    lines = read(".ci/run").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make ")] == ["make check", "make test"]


def test_documentation_names_no_other_host():
    """The documentation's theme takes no script from another host, and its warnings are errors."""
    settings = yaml.safe_load(read("mkdocs.yml"))
    assert (settings["theme"]["highlightjs"], settings["strict"]) == (False, True)


@pytest.mark.parametrize("name", ["scripts", "examples", "bench"])
def test_programs_are_valid(name):
    """Every program beside the package at least compiles."""
    for path in (ROOT / name).rglob("*.py"):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
