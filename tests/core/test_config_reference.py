"""The template and the documentation agree with the schema."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.core.config import load
from stepscope.core.config_reference import PAGE, TEMPLATE, render_page, render_template
from stepscope.core.settings import default_schema

ROOT = Path(__file__).parents[2]
STALE = "run: python -c 'from stepscope.core.config_reference import refresh; refresh()'"


def test_the_template_is_the_rendered_one():
    """`configs/monitoring_config.yaml` changes with the schema."""
    assert (ROOT / TEMPLATE).read_text(encoding="utf-8") == render_template(default_schema()), STALE


def test_the_page_is_the_rendered_one():
    """The tables of `docs/reference/configuration.md` change with the schema."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == render_page(page, default_schema()), STALE
    assert page.count("<!-- generated: ") == 3


def test_the_template_changes_nothing():
    """Loaded as it is, it gives the defaults and no notice."""
    config = load([ROOT / TEMPLATE])
    assert config.values == load().values
    assert config.notices == ()


def test_the_template_holds_every_key(tmp_path):
    """With all its keys made active it sets each of them, to the default."""
    path = tmp_path / "all.yaml"
    path.write_text(re.sub(r"(?m)^ +# .*$", _activate, render_template(default_schema())))
    config = load([path])
    assert set(config.sources) == set(default_schema().keys)
    assert config.values == load().values


def _activate(match: re.Match[str]) -> str:
    """Uncomment a line that holds a key, and not its meaning."""
    line = match[0]
    return line if re.search(r"\[(\S+, )?default .*\]$", line) else line.replace("# ", "", 1)
