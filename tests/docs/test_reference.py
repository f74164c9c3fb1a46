"""The docs say what the code does: their tables are drawn from it, and the names in their text exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import reference
from stepscope.alerts.rules import builtin
from stepscope.analysis.diagnosis.verdict import KINDS
from stepscope.core.config import load
from stepscope.core.settings import KEYS
from stepscope.core.vocabulary import METRICS

ROOT = Path(__file__).parents[2]
DRAWN = {
    "alerts.md": {"rules", "detectors", "profiles", "thresholds"},
    "cli.md": {"commands"},
    "configuration.md": {"settings", "spellings", "implications"},
    "faces.md": {"signatures"},
    "lightning.md": {"options", "definitions"},
    "machine.md": {"samples"},
    "memory.md": {"metrics"},
    "metrics.md": {"metrics", "aliases"},
    "page.md": {"choices"},
}
"""The pages that repeat the code, and the tables that are drawn for them."""


def page(name: str) -> str:
    """Return a page of the docs, wherever it lies."""
    [path] = (ROOT / "docs").rglob(name)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DRAWN)
def test_the_tables_of_a_page_are_drawn_from_the_code(name):
    """A page that repeats the code is what `python tools/reference.py` writes, with all of its tables."""
    if name in {"lightning.md", "page.md"}:
        pytest.importorskip("lightning")
    text = page(name)
    calls = {match["call"].split()[0] for match in reference.MARK.finditer(text)}
    assert calls == DRAWN[name]
    assert text == reference.render_page(text), "run: python tools/reference.py"


def test_no_other_page_is_left_out():
    """Every page with a generated table is among those that are compared."""
    pages = (ROOT / "docs").rglob("*.md")
    assert {path.name for path in pages if reference.MARK.search(path.read_text(encoding="utf-8"))} == set(DRAWN)


def test_a_drifted_table_is_drawn_again():
    """What stands between the marks is replaced, and everything around it stays."""
    text = "before\n<!-- generated: thresholds -->\n\n| old |\n\n<!-- end -->\nafter\n"
    drawn = reference.render_page(text)
    assert "| old |" not in drawn
    assert "| `gpu_memory` | 0.95 | fraction |" in drawn
    assert drawn.startswith("before\n")
    assert drawn.endswith("<!-- end -->\nafter\n")


def test_a_rule_is_documented_with_the_remedy_that_it_prints():
    """The remedy in the table is the text of the rule, its fields in plain words."""
    rows = {row.split("`")[1]: row for row in reference.rules().splitlines()[2:]}
    for rule in builtin.rules():
        parts = re.split(r"\{\w+\}", rule.remedy)
        assert all(part in rows[rule.name] for part in parts), rule.name


def test_the_template_is_the_rendered_one():
    """`configs/monitoring_config.yaml` changes with the schema."""
    assert (ROOT / reference.TEMPLATE).read_text(encoding="utf-8") == reference.render_template()


def test_the_template_changes_nothing():
    """Loaded as it is, it gives the defaults and no notice."""
    config = load([ROOT / reference.TEMPLATE])
    assert config.values == load().values
    assert config.notices == ()


def test_the_template_holds_every_key(tmp_path):
    """With all its keys made active it sets each of them, to the default."""

    def activate(match: re.Match[str]) -> str:
        line = match[0]
        return line if re.search(r"\[(\S+, )?default .*\]$", line) else line.replace("# ", "", 1)

    path = tmp_path / "all.yaml"
    path.write_text(re.sub(r"(?m)^ +# .*$", activate, reference.render_template()))
    config = load([path])
    assert set(config.sources) == set(KEYS)
    assert config.values == load().values


def test_the_memory_page_names_what_exists():
    """Every rule, kind and metric that docs/memory.md names exists."""
    known = {*KINDS, *(rule.name for rule in builtin.rules()), *(metric.name for metric in METRICS), "out_of_memory"}
    text = re.sub(r"```.*?```|<!--.*?<!-- end -->", "", page("memory.md"), flags=re.DOTALL)
    words = re.findall(r"`([a-z]+(?:[_/][a-z*]+)+)`", text)
    assert words
    assert [word for word in words if word not in known] == []


def test_the_page_offers_the_documented_downloads():
    """The export tab offers the formats that the server accepts."""
    source = (ROOT / "web" / "src" / "views" / "export.ts").read_text(encoding="utf-8")
    listed = source.partition("const FORMATS")[2].partition("];")[0]
    offered = re.findall(r'^  \["(\w+)", "', listed, re.MULTILINE)
    documented = re.findall(r"`(\w+)`", reference.choices("stepscope.web.parameters.ExportParameters", "format"))
    assert sorted(offered) == sorted(documented)


def test_the_lightning_page_has_phases_columns_and_thresholds():
    """The page gives the phases of a step, the columns of the CSV files, and the thresholds of alerts."""
    from stepscope.integrations.lightning import action_phases, resource_alerts, resource_csv

    text = page("lightning.md")
    section = text.partition("\n## What a step is")[2].partition("\n## ")[0]
    phases = {
        *action_phases.ENDINGS.values(),
        *action_phases.NAMED.values(),
        *action_phases.HOOKS,
        *action_phases.PAUSES,
    }
    assert {phase for phase in phases if f"`{phase}`" not in section} == set()
    assert all(f"`{column}`" in text.partition("epoch_0.csv")[2] for column in resource_csv.FIRST)
    assert f"{resource_alerts.HOT:.0f} °C" in text
    assert f"{resource_alerts.HYSTERESIS * 100:.0f} %" in text


def test_every_rule_names_a_test_that_exists():
    """Each row of docs/concepts/rules.md names test files of this repository, and each of them has tests."""
    rows = re.findall(r"^\| [^|]+\. \| (.+) \|$", page("rules.md"), re.MULTILINE)
    assert len(rows) > 40
    for path in (path for row in rows for path in re.findall(r"`(tests/[\w/]+\.py)`", row)):
        assert "def test_" in (ROOT / path).read_text(encoding="utf-8"), path
    assert all("`tests/" in row for row in rows)
