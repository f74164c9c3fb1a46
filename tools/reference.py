"""Write the tables of the docs that repeat the code, from the code: `python tools/reference.py`.

A table stands between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end -->`; `TABLES` has the function that draws it.
The configuration template is written too. `--check` changes nothing and exits with 1 if something is stale.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from sources import ROOT

sys.path.insert(0, str(ROOT / "src"))

from stepscope.alerts.evaluation.detectors import DETECTORS, HELP
from stepscope.alerts.rules import builtin
from stepscope.alerts.rules.profiles import PROFILES
from stepscope.cli.parser import GROUPS, build_parser, subcommands
from stepscope.core.remedies import remedy
from stepscope.core.settings import IMPLICATIONS, KEYS, SECTIONS
from stepscope.core.spellings import CALLBACK_GROUPS, FLAT_SECTIONS, MONITORING_ROOT
from stepscope.core.thresholds import BY_NAME as THRESHOLDS
from stepscope.core.vocabulary import ALIASES, GIB, METRICS, MIB, Metric
from stepscope.samplers.machine import host_samplers
from stepscope.samplers.nvidia import NvidiaSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from stepscope.core.kinds import Key
    from stepscope.core.spellings import KeyAlias

TEMPLATE = Path("configs/monitoring_config.yaml")
TEMPLATE_HEADER = """\
# Every setting of Stepscope with its default. Keep what you change, delete the rest.
# Lines that start with "# " and a key are not active: other settings change these values as long as they are not
# set here. docs/reference/configuration.md explains all of them.
"""
MARK = re.compile(r"(?P<open><!-- generated: (?P<call>[^>]*?) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
INTERNAL = {
    "resources",
    "stream",
    "make_machine",
    "clock",
    "wall",
    "modules",
    "now",
    "send",
    "start_run",
    "notices",
    "record",
    "steps",
    "resident",
}
"""Parameters of constructors that tests pass and users do not."""
SEVERITIES = {"leak": "warning or critical", "gpu_leak": "warning or critical", "disk_full": "critical"}
"""Severities of detectors that go by the time that is left, in place of the rule's."""
FACTORS = {1.0: "1", 0.01: "0.01", MIB: "2**20", GIB: "2**30"}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = (" | ".join(cells).replace("|  |", "| |") for cells in (heads, *rows))
    first, *others = (f"| {line} |".replace("  |", " |") for line in lines)
    return "\n".join([first, "|" + "---|" * len(heads), *others])


def commands() -> str:
    """Return a table of the commands in their groups, with their line of `stepscope --help`."""
    _, helps = subcommands(build_parser())
    rows = [
        (title if name == names[0] else "", f"[`{name}`](#stepscope-{name})", helps[name])
        for title, names in GROUPS.items()
        for name in names
    ]
    return table(("to", "command", "what it does"), rows)


def settings() -> str:
    """Return a table of the keys of each section of the configuration."""
    blocks = []
    for section, meaning in SECTIONS.items():
        keys = section_keys(section)
        rows = [
            (f"`{key.path}`", key.kind.name, f"`{key.kind.show(key.default)}`", key.kind.unit, key_text(key))
            for key in keys
        ]
        drawn = table(("key", "kind", "default", "unit", "meaning"), rows) if rows else ""
        blocks.append(f"### {section}\n\n{meaning[0].upper()}{meaning[1:]}.\n\n{drawn}".rstrip())
    return "\n\n".join(blocks)


def spellings() -> str:
    """Return a table of the other spellings that a configuration may use, for each of their three styles."""
    styles: dict[str, Sequence[KeyAlias]] = {
        "A `monitoring:` root": MONITORING_ROOT,
        "Flat sections": FLAT_SECTIONS,
        "Callback groups": CALLBACK_GROUPS,
    }
    tables = (
        f"### {title}\n\n"
        + table(("written", "sets", ""), ((f"`{one.path}`", f"`{one.target}`", one.note) for one in names))
        for title, names in styles.items()
    )
    return "\n\n".join(tables)


def implications() -> str:
    """Return a table of the settings that change the defaults of others."""
    rows = []
    for rule in IMPLICATIONS:
        changed = (f"`{path}` to `{KEYS[path].kind.show(value)}`" for path, value in rule.implied.items())
        rows.append((f"`{rule.path}`", rule.note, ", ".join(changed)))
    return table(("setting", "", "changes the default of"), rows)


def metrics(*names: str) -> str:
    """Return a table of some metrics, or of the whole vocabulary."""
    known = {metric.name: metric for metric in (*METRICS, *sampled())}
    return metric_table([known[name] for name in names] or METRICS)


def samples() -> str:
    """Return a table of the metrics that the samplers declare."""
    return metric_table(sampled())


def aliases() -> str:
    """Return a table of the other spellings of metrics."""
    rows = ((f"`{one.name}`", f"`{one.canonical}`", FACTORS[one.factor], one.unit or "same") for one in ALIASES)
    return table(("spelling", "canonical name", "factor", "unit"), rows)


def rules() -> str:
    """Return a table of the built-in alert rules with the remedy that an alert of each rule prints."""
    rows = []
    for rule in builtin.rules():
        severity = SEVERITIES.get(rule.detect or "", rule.severity)
        advice = remedy(*builtin.KINDS.get(rule.name, rule.name).split("/"))
        rows.append((f"`{rule.name}`", rule.help.removesuffix("."), severity, advice.replace("|", "\\|")))
    return table(("rule", "fires when", "severity", "what to do"), rows)


def detectors() -> str:
    """Return a table of the detectors with their options and defaults."""
    rows = (
        (f"`{name}`", text, ", ".join(f"`{key}={value:g}`" for key, value in DETECTORS[name].options.items()))
        for name, text in HELP.items()
    )
    return table(("detector", "detects", "options and defaults"), rows)


def profiles() -> str:
    """Return a table of the alert profiles."""
    return table(("profile", "contains"), ((f"`{name}`", one.text) for name, one in PROFILES.items()))


def thresholds() -> str:
    """Return a table of the alert thresholds and their defaults."""
    rows = ((f"`{name}`", f"{key.default:g}", key.kind.unit, key.help) for name, key in THRESHOLDS.items())
    return table(("threshold", "default", "unit", "meaning"), rows)


def signatures(*modules: str) -> str:
    """Return a table of the public names of modules: what each does, its parameters and their defaults."""
    rows = []
    for module in modules:
        for name in load(f"{module}.__all__"):
            made = load(f"{module}.{name}")
            shown = ", ".join(parameter(one) for one in parameters(made))
            purpose = (inspect.getdoc(made) or "").partition("\n")[0].removesuffix(".")
            rows.append((f"`{name}`", f"`{module}`", purpose, f"`({shown})`"))
    return table(("name", "module", "purpose", "parameters and defaults"), rows)


def options(path: str) -> str:
    """Return a table of a constructor's parameters: their defaults, and what their docstring says."""
    made = load(path)
    meanings = documented(inspect.getdoc(made.__init__) or "")
    rows = [(f"`{one.name}`", f"`{default(one.default)}`", meanings[one.name]) for one in parameters(made)]
    return table(("option", "default", "meaning"), rows)


def definitions(path: str) -> str:
    """Return a table of a dictionary that defines figures."""
    return table(("figure", "definition"), ((f"`{name}`", text) for name, text in load(path).items()))


def choices(path: str, field: str) -> str:
    """Return, as one sentence, the words that a typed field of the server's interface accepts."""
    words = [f"`{word}`" for word in get_args(get_type_hints(load(path))[field])]
    return f"Formats: {', '.join(words[:-1])} and {words[-1]}."


TABLES: dict[str, Callable[..., str]] = {
    draw.__name__: draw
    for draw in (
        commands,
        settings,
        spellings,
        implications,
        metrics,
        samples,
        aliases,
        rules,
        detectors,
        profiles,
        thresholds,
        signatures,
        options,
        definitions,
        choices,
    )
}


def sampled() -> list[Metric]:
    """Return every metric that a sampler declares, once."""
    samplers = [*host_samplers(Path("/"), Path("/"), dict), NvidiaSampler(None, all_devices=False, pids=set)]
    return [Metric(*metric) for metric in dict.fromkeys(metric for one in samplers for metric in one.metrics)]


def metric_table(chosen: Iterable[Metric]) -> str:
    """Return a table of metrics."""
    rows = ((f"`{name}`", unit or "-", kind, text) for name, unit, kind, text in chosen)
    return table(("metric", "unit", "kind", "meaning"), rows)


def section_keys(section: str) -> list[Key]:
    """Return the keys of a section, those of one subsection together."""
    keys = [key for path, key in KEYS.items() if path.startswith(f"{section}.")]
    return sorted(keys, key=lambda key: key.path.split(".")[1:-1])


def key_text(key: Key) -> str:
    """Return what a setting means."""
    return key.help


def load(path: str) -> Any:
    """Return the object that a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def parameters(made: Any) -> list[inspect.Parameter]:
    """Return the parameters of a class or function that users pass."""
    return [one for name, one in inspect.signature(made).parameters.items() if name not in INTERNAL]


def parameter(one: inspect.Parameter) -> str:
    """Return a parameter as it is written in a call."""
    if one.kind is one.VAR_KEYWORD:
        return f"**{one.name}"
    return one.name if one.default is one.empty else f"{one.name}={default(one.default)}"


def default(value: object) -> str:
    """Return a default value as Python, long texts cut."""
    text = "{}" if repr(value) == "<factory>" else repr(value)
    return text if len(text) <= 40 else f"{text[:36]}…{text[-1]}"


def documented(docstring: str) -> dict[str, str]:
    """Return the texts of a docstring's `Args:` by parameter."""
    text = re.split(r"\n\n(?=\S)", docstring.partition("Args:\n")[2])[0]
    pairs = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()).removesuffix(".") for name, words in pairs}


def render_page(page: str) -> str:
    """Return a page of the docs with its generated parts drawn again."""

    def draw(match: re.Match[str]) -> str:
        name, *arguments = match["call"].split()
        return f"{match['open']}\n{TABLES[name](*arguments)}\n\n{match['close']}"

    return MARK.sub(draw, page)


def render_template() -> str:
    """Return a YAML file with every key at its default, each with its meaning, unit and default as a comment."""
    implied = {path for rule in IMPLICATIONS for path in rule.implied}
    lines = [TEMPLATE_HEADER]
    for section, meaning in SECTIONS.items():
        lines.append(f"# {meaning}\n{section}:")
        above: list[str] = [section]
        for key in section_keys(section):
            *parents, name = key.path.split(".")
            facts = ", ".join(filter(None, [key.kind.unit, f"default {key.kind.show(key.default)}"]))
            active = key.path not in implied
            indent = "  " * len(parents)
            new = (depth for depth in range(len(parents)) if parents[: depth + 1] != above[: depth + 1])
            lines += [f"{'  ' * depth}{parents[depth]}:" for depth in new]
            lines.append(f"{indent}# {key_text(key)} [{facts}]")
            lines.append(f"{indent}{'' if active else '# '}{name}: {key.kind.show(key.default)}")
            above = parents
        lines.append("")
    return "\n".join(lines)


def rendered(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield each file that has generated parts, and what it should contain."""
    yield root / TEMPLATE, render_template()
    for path in sorted((root / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if MARK.search(text):
            yield path, render_page(text)


def main(argv: Sequence[str]) -> int:
    """Write what is stale, or only name it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something is stale")
    options = parser.parse_args(argv)
    stale = [(path, text) for path, text in rendered() if path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        print(f"{path.relative_to(ROOT)}: {'stale' if options.check else 'written'}")
        if not options.check:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
