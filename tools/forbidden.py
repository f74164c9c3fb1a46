"""Calls and imports that run or unpack foreign data, which the package never makes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from sources import Finding, Module, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "os.system",
    "os.popen",
    "torch.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "shutil.unpack_archive",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
}
METHODS = {"extractall"}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}


def forbidden_findings(module: Module) -> Iterator[Finding]:
    """Yield each forbidden import and call of one module."""
    safe = safe_loaders(module.tree)
    for node in ast.walk(module.tree):
        for name in imported(node):
            if name.partition(".")[0] in MODULES:
                yield Finding(module.path, node_line(node), f"imports {name}, which runs what it reads; use JSON")
        if isinstance(node, ast.Call):
            problem = call_problem(node, safe)
            if problem:
                yield Finding(module.path, node.lineno, problem)


def node_line(node: ast.AST) -> int:
    """Return the line of a node; 1 where it has none."""
    return int(getattr(node, "lineno", 1))


def imported(node: ast.AST) -> list[str]:
    """Return the absolute module names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def safe_loaders(tree: ast.Module) -> set[str]:
    """Return the YAML loaders that are safe: the library's two and classes of this module that derive from them."""
    safe = set(SAFE_LOADERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and safe & {name_of(base).rpartition(".")[2] for base in node.bases}:
            safe.add(node.name)
    return safe


def call_problem(call: ast.Call, safe: set[str]) -> str | None:
    """Return why a call is forbidden, if it is."""
    name = name_of(call.func)
    attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    words = {word.arg: word.value for word in call.keywords if word.arg}
    if name in BUILTINS or name in CALLS or attribute in METHODS:
        return f"calls {name or attribute}, which runs or unpacks foreign data"
    if name == "yaml.load":
        loader = words.get("Loader", call.args[1] if len(call.args) > 1 else None)
        if loader is None or name_of(loader).rpartition(".")[2] not in safe:
            return "calls yaml.load without a SafeLoader"
    if is_true(words.get("shell")):
        return "passes shell=True; give the arguments as a list"
    if is_true(words.get("allow_pickle")):
        return "passes allow_pickle=True"
    return None


def is_true(node: ast.expr | None) -> bool:
    """Tell whether an argument is given and not the literal False."""
    return node is not None and not (isinstance(node, ast.Constant) and not node.value)
