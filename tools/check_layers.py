"""Check that imports go down the layers only: `python tools/check_layers.py [REPOSITORY]`.

Reads the imports, including those inside functions and under TYPE_CHECKING, and the strings that name a module of the
package. Refuses an arrow that the table below does not allow, a cycle, an import of the top package from inside it, and
a third-party module that `import stepscope` loads.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import TYPE_CHECKING

from sources import PACKAGE, Finding, Module, package_modules, report, root_argument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOP = "the top package"
FACE = "a public face"
LAYERS: dict[str, int] = {
    "version": 0,
    "core": 0,
    "recorder": 1,
    "samplers": 1,
    "store": 1,
    "importers": 1,
    "analysis": 2,
    "sources": 3,
    "views": 3,
    "reports": 3,
    "exporters": 3,
    "alerts": 3,
    "session": 4,
    "watcher": 4,
    "web": 4,
    "tui": 4,
    "planner": 4,
    "cli": 5,
    "integrations": 5,
    "trackers": 5,
    FACE: 5,
    TOP: 6,
}
"""Layer of each room. An arrow may go to a lower layer, or be one of SIDEWAYS."""

SIDEWAYS = {
    ("views", "alerts"),
    ("views", "sources"),
    ("reports", "views"),
    ("watcher", "session"),
    ("web", "session"),
    ("tui", "session"),
    ("planner", "session"),
    (FACE, "trackers"),
    (FACE, "integrations"),
    ("trackers", "integrations"),
}
"""Arrows inside one layer: views show alerts and what sources read, reports draw views, a process that starts runs
needs session, and a face shows a tracker or a hook."""

NARROW = {"analysis": {"core", "version"}}
"""Rooms that may import less than their layer allows: analysis takes arrays, it never reads a store."""

PROCESSES = {
    "session.page": "web.training_server",
    "session.console": "watcher.console_keeper",
    "session.watching": "watcher.process",
    "watcher.notifying": "alerts.delivery.notifier",
    "watcher.sealing": "store.seal",
    "samplers.nvidia_dialog": "samplers.nvidia_helper",
    "cli.commands.demo": "cli.demo.training",
}
"""Modules that start a process, and the module that the process runs: the name is no import."""

FILES = {"reports.report_file": "web"}
"""Modules that read a data file of another room's folder: the built chart of the page, for the HTML report."""

PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import stepscope
loaded = set(sys.modules) - before
roots = {name.partition(".")[0] for name in loaded}
print(json.dumps([sorted(roots - set(sys.stdlib_module_names) - {"stepscope"}), len(sys.modules)]))
"""


def room(module: Module) -> str:
    """Return the room that a module belongs to, as LAYERS names it."""
    if module.name in {PACKAGE, f"{PACKAGE}.__main__"}:
        return TOP
    is_face = module.name.count(".") == 1 and not module.is_package and module.room not in LAYERS
    return FACE if is_face else module.room


def targets(module: Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module of the package that this one imports, or names in a string."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == PACKAGE:
                    yield node.lineno, nearest(alias.name, known)
        elif isinstance(node, ast.ImportFrom):
            base = source_of(node, module)
            if base.partition(".")[0] == PACKAGE:
                for alias in node.names:
                    yield node.lineno, nearest(f"{base}.{alias.name}", known)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = named_module(node.value, known)
            if name and not is_exempt(module.name, name):
                yield node.lineno, name


def named_module(text: str, known: set[str]) -> str:
    """Return the module of the package that a string, or the start of an f-string, names; empty if it names none."""
    path = text.partition(":")[0].rstrip(".")
    if not path.startswith(f"{PACKAGE}.") or not all(part.isidentifier() for part in path.split(".")):
        return ""
    name = nearest(path, known)
    return "" if name == PACKAGE else name


def is_exempt(source: str, target: str) -> bool:
    """Return whether a string names a process to start, a folder of data or the package that holds the module."""
    if source.startswith(f"{target}."):
        return True
    short, other = (name.removeprefix(f"{PACKAGE}.") for name in (source, target))
    return PROCESSES.get(short) == other or FILES.get(short) == other


def source_of(node: ast.ImportFrom, module: Module) -> str:
    """Return the absolute name of what a `from … import` reads from."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    keep = len(parts) - node.level + module.is_package
    return ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])


def nearest(name: str, known: set[str]) -> str:
    """Return the longest prefix of a dotted name that is a module."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name


def allowed(source: str, target: str) -> bool:
    """Tell whether a room may import another one."""
    if source == target:
        return True
    if source in NARROW and target not in NARROW[source]:
        return False
    return LAYERS[target] < LAYERS[source] or (source, target) in SIDEWAYS


def advice(source: str, target: str) -> str:
    """Say which import is right instead of the refused one."""
    below = sorted(name for name in LAYERS if name not in {source, TOP, FACE} and allowed(source, name))
    rooms = ", ".join(below) or "nothing of the package"
    if LAYERS[target] == LAYERS[source]:
        return f"rooms of one layer do not know each other: {source} may import {rooms}; wire the two above"
    return f"{source} may import {rooms}; move what both need into one of these, or take it as an argument"


def layer_findings(modules: list[Module]) -> Iterator[Finding]:
    """Yield each import that the table does not allow."""
    rooms = {module.name: room(module) for module in modules}
    for module in modules:
        source = rooms[module.name]
        if source not in LAYERS:
            yield Finding(module.path, 1, f"room {source!r} has no layer; add it to LAYERS and the architecture page")
            continue
        for line, name in targets(module, set(rooms)):
            target = rooms.get(name)
            if name == PACKAGE:
                hint = f"import from the module that has it, as in `from {PACKAGE}.core.errors import StepscopeError`"
                yield Finding(module.path, line, f"imports the top package from inside it; {hint}")
            elif target in LAYERS and not allowed(source, target):
                yield Finding(module.path, line, f"{source} imports {name} ({target}); {advice(source, target)}")


def cycle_findings(modules: list[Module]) -> Iterator[Finding]:
    """Yield each group of modules that import each other, also inside functions, for types or by a string."""
    known = {module.name for module in modules}
    paths = {module.name: module.path for module in modules}
    graph = {module.name: imports(module, known) for module in modules}
    reach = {name: reachable(graph, name) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        if name in reach[name] and name not in seen:
            group = sorted(other for other in reach[name] if name in reach.get(other, set()))
            seen.update(group)
            text = f"import cycle of {', '.join(group)}; move what they share into a module that imports none of them"
            yield Finding(paths[name], 1, text)


def imports(module: Module, known: set[str]) -> set[str]:
    """Return the other modules that this one imports."""
    return {name for _, name in targets(module, known)} - {module.name}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return every module that importing start can lead to; start itself only through a cycle."""
    found: set[str] = set()
    todo = [start]
    while todo:
        for name in graph.get(todo.pop(), set()) - found:
            found.add(name)
            todo.append(name)
    return found


def import_findings(root: Path) -> tuple[list[Finding], int]:
    """Import the package in a fresh process; return what third-party it loads and the number of modules in all."""
    top = root / "src" / PACKAGE / "__init__.py"
    if not top.exists():
        return [], 0
    command = [sys.executable, "-I", "-c", PROBE, str(root / "src")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return [Finding(top, 1, f"`import {PACKAGE}` fails: {done.stderr.strip().splitlines()[-1]}")], 0
    foreign, count = json.loads(done.stdout)
    text = "`import {}` loads the third-party module {!r}; import it inside the function that uses it"
    return [Finding(top, 1, text.format(PACKAGE, name)) for name in foreign], count


def main(argv: list[str]) -> int:
    """Check the repository and return the exit code."""
    root = root_argument(argv)
    modules = package_modules(root)
    at_import, count = import_findings(root)
    findings = [*layer_findings(modules), *cycle_findings(modules), *at_import]
    summary = f"{len(modules)} modules, arrows down only, no cycle; import loads {count} modules, none third-party"
    return report(findings, summary, root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
