"""Check the form of error messages: `python tools/check_errors.py [REPOSITORY]`.

Each error of the StepscopeError family gives what, cause and remedy, so that its message reads
"cannot <verb> <object>: <cause>; <what to do>". Rooms that speak to people raise no other error with a message.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sources import Finding, Module, name_of, package_modules, report, root_argument

if TYPE_CHECKING:
    from collections.abc import Iterator

FAMILY = "StepscopeError"
PARTS = ("what", "cause", "remedy")
SPEAKING = {"cli", "store", "session"}
"""Rooms whose errors people read: only the family is raised there, or one of ALLOWED."""

ALLOWED = {"ArgumentTypeError", "TypeError", "ValueError"}
"""For decoding and argument parsing, whose caller turns them into a finding or a usage error; they carry a message."""

PROTOCOL = {
    "__getattr__": {"AttributeError"},
    "__setattr__": {"AttributeError"},
    "__getitem__": {"KeyError", "IndexError"},
    "__next__": {"StopIteration"},
}
"""Errors that Python itself asks of these methods."""

Scope = list[ast.AST]


@dataclass(frozen=True, slots=True)
class Classes:
    """Names of exception classes, by what is asked of them."""

    family: set[str]
    """The errors that people read."""
    own: set[str]
    """Those of the family that build their message themselves."""
    decoding: set[str]
    """ALLOWED and what derives from it."""


def classes_of(modules: list[Module]) -> Classes:
    """Sort the exception classes of the package."""
    classes = {
        node.name: node for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    }
    family = derived(classes, {FAMILY})
    own = {name for name in family - {FAMILY} if name in classes and has_constructor(classes[name])}
    return Classes(family, own, derived(classes, ALLOWED))


def derived(classes: dict[str, ast.ClassDef], roots: set[str]) -> set[str]:
    """Return these classes and all that derive from them."""
    found = set(roots)
    while grown := {name for name, node in classes.items() if name not in found and bases(node) & found}:
        found |= grown
    return found


def bases(node: ast.ClassDef) -> set[str]:
    """Return the last words of a class's base names."""
    return {name_of(base).rpartition(".")[2] for base in node.bases}


def has_constructor(node: ast.ClassDef) -> bool:
    """Tell whether a class defines `__init__`."""
    return any(isinstance(item, ast.FunctionDef) and item.name == "__init__" for item in node.body)


def walk(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield each node below this one with the classes and functions around it, outermost first."""
    for child in ast.iter_child_nodes(node):
        yield child, scope
        opens = isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        yield from walk(child, [*scope, child] if opens else scope)


def opening(node: ast.expr | None) -> str | None:
    """Return the literal text that an expression starts with; None if it starts with a computed one."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return opening(node.values[0]) if node.values else ""
    if isinstance(node, ast.BinOp):
        return opening(node.left)
    return None


def literals(node: ast.expr | None) -> str:
    """Return all literal text of an expression, joined."""
    strings = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)] if node else []
    return " ".join(text for text in strings if isinstance(text, str))


def parts_of(call: ast.Call) -> dict[str, ast.expr] | None:
    """Return the three parts by name, those that are given; None if `*` or `**` hides them."""
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(word.arg is None for word in call.keywords):
        return None
    given = dict(zip(PARTS, call.args, strict=False))
    given.update({word.arg: word.value for word in call.keywords if word.arg})
    return given


def message_problems(call: ast.Call) -> Iterator[str]:
    """Yield what is wrong with the message of one error of the family."""
    parts = parts_of(call)
    if parts is None:
        return
    missing = [name for name in PARTS if name not in parts]
    if missing:
        yield f"gives no {', '.join(missing)}; write {FAMILY}(what, cause, remedy)"
        return
    what, remedy = opening(parts["what"]), opening(parts["remedy"])
    if re.search(r"\b(cannot|can't|could not|failed)\b", literals(parts["what"])):
        yield '`what` says "cannot" or the like; the message adds it: give verb and object, as in "open run \'mnist\'"'
    elif what is not None and not re.match(r"[a-z]+ \S|[a-z]+ $", what):
        yield f"`what` starts with {what[:20]!r}; give a lower-case verb and its object, as in \"open run 'mnist'\""
    if opening(parts["cause"]) == "":
        yield "`cause` is empty; say why it failed"
    if remedy is not None and not re.match(r"[^A-Z\s]", remedy):
        yield f"`remedy` starts with {remedy[:20]!r}; say in lower case what to do next"


def is_base_call(call: ast.Call, scope: Scope, own: set[str]) -> bool:
    """Tell whether this is `super().__init__(…)` in an error class that builds its own message."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"):
        return False
    inside = any(isinstance(node, ast.ClassDef) and node.name in own for node in scope)
    return inside and isinstance(call.func.value, ast.Call) and name_of(call.func.value.func) == "super"


def raise_problem(node: ast.Raise, scope: Scope, classes: Classes) -> str | None:
    """Return what is wrong with a raise in a room that speaks to people."""
    call = node.exc
    if not isinstance(call, ast.Call):
        return None
    name = name_of(call.func).rpartition(".")[2]
    if not name or name in classes.family or name.startswith("_") or name[0].islower():
        return None
    around = {node.name for node in scope if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if any(name in PROTOCOL.get(function, ()) for function in around):
        return None
    if name in classes.decoding:
        return None if call.args else f"raises {name} without a message; say what was found and what was expected"
    return f"raises {name}; raise {FAMILY} or UsageError (what, cause, remedy), which the command line prints"


def findings_of(module: Module, classes: Classes) -> Iterator[Finding]:
    """Yield each badly formed error of one module."""
    for node, scope in walk(module.tree, []):
        if isinstance(node, ast.Call):
            name = name_of(node.func).rpartition(".")[2]
            if name in classes.family - classes.own or is_base_call(node, scope, classes.own):
                yield from (Finding(module.path, node.lineno, f"{name} {text}") for text in message_problems(node))
        elif isinstance(node, ast.Raise) and module.room in SPEAKING and module.name != "stepscope.cli.main":
            problem = raise_problem(node, scope, classes)
            if problem:
                yield Finding(module.path, node.lineno, problem)


def main(argv: list[str]) -> int:
    """Check the repository and return the exit code."""
    root = root_argument(argv)
    modules = package_modules(root)
    classes = classes_of(modules)
    findings = [finding for module in modules for finding in findings_of(module, classes)]
    calls = sum(
        isinstance(node, ast.Call) and name_of(node.func).rpartition(".")[2] in classes.family
        for module in modules
        for node in ast.walk(module.tree)
    )
    return report(findings, f"{calls} errors say what, why and what to do", root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
