"""The written reference of the configuration, rendered from the schema: the template and the tables of the docs.

Tests compare the files with it. After a change of the schema rewrite them, from the repository's root:
``python -c 'from stepscope.core.config_reference import refresh; refresh()'``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.schema import SECTIONS
from stepscope.core.settings import default_schema
from stepscope.core.spellings import CALLBACK_GROUPS, FLAT_SECTIONS, MONITORING_ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.schema import Alias, Key, Schema

TEMPLATE = Path("configs/monitoring_config.yaml")
PAGE = Path("docs/reference/configuration.md")
HEADER = """\
# Every setting of Stepscope with its default. Keep what you change, delete the rest.
# Lines that start with "# " and a key are not active: parts that are not built yet, and values that other
# settings change as long as they are not set here. docs/reference/configuration.md explains all of them.
"""


def render_template(schema: Schema) -> str:
    """Return a YAML file with every key at its default, each with its meaning, unit and default as a comment."""
    implied = {path for rule in schema.implications for path in rule.implied}
    lines = [HEADER]
    for section, meaning in SECTIONS.items():
        lines.append(f"# {meaning}\n{section}:")
        above: list[str] = [section]
        for key in _keys(schema, section):
            *parents, name = key.path.split(".")
            active = key.status == "built" and key.path not in implied
            lines += _headings(above, parents)
            indent = "  " * len(parents)
            lines.append(f"{indent}# {_meaning(key)}")
            lines.append(f"{indent}{'' if active else '# '}{name}: {key.type.show(key.default)}")
            above = parents
        lines.append("")
    return "\n".join(lines)


def render_tables(schema: Schema) -> str:
    """Return a Markdown table of keys for each section."""
    blocks = []
    for section, meaning in SECTIONS.items():
        rows = [
            f"| `{key.path}` | {key.type.name} | `{key.type.show(key.default)}` | {key.unit} | {_text(key)} |"
            for key in _keys(schema, section)
        ]
        head = ["", "| key | kind | default | unit | meaning |", "|---|---|---|---|---|"] if rows else []
        blocks.append("\n".join([f"### {section}", "", f"{meaning[0].upper()}{meaning[1:]}.", *head, *rows]))
    return "\n\n".join(blocks)


def render_spellings() -> str:
    """Return Markdown tables of the spellings of the documents and the keys that they set."""
    tables = {
        "A `monitoring:` root": MONITORING_ROOT,
        "Flat sections": FLAT_SECTIONS,
        "Callback groups": CALLBACK_GROUPS,
    }
    return "\n\n".join(f"### {title}\n\n{_alias_table(aliases)}" for title, aliases in tables.items())


def render_implications(schema: Schema) -> str:
    """Return a Markdown table of the settings that change the defaults of others."""
    rows = [
        f"| `{rule.path}` | {rule.note} | {', '.join(_assignment(schema, *item) for item in rule.implied.items())} |"
        for rule in schema.implications
    ]
    return "\n".join(["| setting | | changes the default of |", "|---|---|---|", *rows])


def render_page(page: str, schema: Schema) -> str:
    """Return the documentation page with its generated parts, each between two comments, replaced."""
    parts = {
        "keys": render_tables(schema),
        "spellings": render_spellings(),
        "implications": render_implications(schema),
    }
    for name, text in parts.items():
        before, mark, rest = page.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{mark}\n{text}\n\n{end}{after}"
    return page


def refresh(root: Path = Path()) -> None:
    """Rewrite the template and the generated parts of the page."""
    schema = default_schema()
    (root / TEMPLATE).write_text(render_template(schema), encoding="utf-8")
    page = root / PAGE
    page.write_text(render_page(page.read_text(encoding="utf-8"), schema), encoding="utf-8")


def _keys(schema: Schema, section: str) -> list[Key]:
    """Return the keys of a section, those of one subsection together, built ones first."""
    keys = [key for path, key in schema.keys.items() if path.startswith(f"{section}.")]
    return sorted(keys, key=lambda key: key.path.split(".")[1:-1])


def _headings(above: list[str], parents: list[str]) -> list[str]:
    """Return the lines that open the subsections in which the last key was not."""
    new = (depth for depth in range(len(parents)) if parents[: depth + 1] != above[: depth + 1])
    return [f"{'  ' * depth}{parents[depth]}:" for depth in new]


def _text(key: Key) -> str:
    return f"{key.help} (not built yet)" if key.status == "planned" else key.help


def _meaning(key: Key) -> str:
    facts = [key.unit, f"default {key.type.show(key.default)}"]
    return f"{_text(key)} [{', '.join(filter(None, facts))}]"


def _alias_table(aliases: Sequence[Alias]) -> str:
    rows = [f"| `{alias.path}` | `{alias.target}` | {alias.note} |" for alias in aliases]
    return "\n".join(["| written | sets | |", "|---|---|---|", *rows])


def _assignment(schema: Schema, path: str, value: object) -> str:
    return f"`{path}` to `{schema.keys[path].type.show(value)}`"
