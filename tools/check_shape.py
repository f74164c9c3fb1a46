"""Check the shape of the code: `python tools/check_shape.py [REPOSITORY]`.

Limits for size and branching, documentation and types, no silent except, no `global`, no module name that could hold
anything, class names that stand for one thing, none of the calls that run or unpack foreign data, tests that state
their rule and do not sleep.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from forbidden import forbidden_findings
from sources import Finding, Module, folder_modules, name_of, package_modules, report, root_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

FILE_LINES = 500
CLASS_LINES = 300
FUNCTION_LINES = 60
BRANCHES = 15
HOT_PATH = ("stepscope.recorder.hotpath", 200)
TOP_NAMES = 10
VAGUE = {"common", "engine", "helper", "helpers", "manager", "misc", "runtime", "sdk", "services", "util", "utils"}
SLEEPS = {"asyncio.sleep", "sleep", "time.sleep"}
REAL_PROCESSES = "tests.integration."
"""Tests that run real processes have to wait for them, and may sleep."""
BROAD = {"", "Exception", "BaseException"}
BRANCHING = (
    ast.If,
    ast.For,
    ast.While,
    ast.AsyncFor,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.Assert,
    ast.match_case,
)


def span(node: ast.stmt) -> int:
    """Return the number of lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def branches(function: Function) -> int:
    """Return 1 + branches + extra operands of and/or, nested functions included."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHING):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def file_size(module: Module) -> Iterator[Finding]:
    """Refuse a file that is too long."""
    limit = HOT_PATH[1] - 1 if module.name == HOT_PATH[0] else FILE_LINES
    if module.lines > limit:
        yield Finding(module.path, 1, f"{module.lines} lines, limit {limit}; split it by who reads it")


def block_size(module: Module) -> Iterator[Finding]:
    """Refuse classes and functions that are too long, and functions that branch too much."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and span(node) > CLASS_LINES:
            text = f"class {node.name} has {span(node)} lines, limit {CLASS_LINES}; split it by who calls it"
            yield Finding(module.path, node.lineno, text)
    for function in functions(module.tree):
        if span(function) > FUNCTION_LINES:
            text = f"{function.name} has {span(function)} lines, limit {FUNCTION_LINES}; name its parts"
            yield Finding(module.path, function.lineno, text)
        if branches(function) > BRANCHES:
            text = f"{function.name} has {branches(function)} branches, limit {BRANCHES}; use a table or name the parts"
            yield Finding(module.path, function.lineno, text)


def naming(module: Module) -> Iterator[Finding]:
    """Refuse module names that could hold anything."""
    word = module.name.rpartition(".")[2].strip("_")
    if word in VAGUE:
        yield Finding(module.path, 1, f"a module called {word!r} could hold anything; name it by its noun")


def public_blocks(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Yield public functions and classes, and the public methods of public classes."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            decorators = {name_of(item).rpartition(".")[2] for item in node.decorator_list}
            if not decorators & {"overload", "override", "setter", "deleter"}:
                yield node
            if isinstance(node, ast.ClassDef):
                yield from public_blocks(node.body)


def documentation(module: Module) -> Iterator[Finding]:
    """Ask for a docstring of every module, public class and public function."""
    if module.tree.body and not ast.get_docstring(module.tree):
        yield Finding(module.path, 1, "no module docstring; say in one line what it is about")
    for node in public_blocks(module.tree.body):
        if not ast.get_docstring(node):
            yield Finding(module.path, node.lineno, f"{node.name} is public and has no docstring")


def typing_of(module: Module) -> Iterator[Finding]:
    """Ask for the type of every argument and result."""
    methods = {
        item
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, Function) and "staticmethod" not in map(name_of, item.decorator_list)
    }
    for function in functions(module.tree):
        spec = function.args
        positional = [*spec.posonlyargs, *spec.args][function in methods :]
        given = [*positional, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
        bare = [argument.arg for argument in given if argument.annotation is None]
        if function.returns is None and function.name != "__init__":
            bare.append("its result")
        if bare:
            yield Finding(module.path, function.lineno, f"{function.name} has no type for {', '.join(bare)}")


def is_silent(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler does nothing at all."""
    return all(
        isinstance(item, (ast.Pass, ast.Continue))
        or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and item.value.value is ...)
        for item in handler.body
    )


def caught(node: ast.expr | None) -> set[str]:
    """Return the names of the exceptions that an except clause catches; the empty name for all of them."""
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    return {name_of(item).rpartition(".")[2] if item else "" for item in items}


def suppresses_all(call: ast.Call) -> bool:
    """Tell whether a call is `suppress(Exception)` or wider."""
    named = name_of(call.func).rpartition(".")[2] == "suppress"
    return named and any(caught(argument) & BROAD for argument in call.args)


def silence(module: Module) -> Iterator[Finding]:
    """Refuse handlers that hide an error: a silent one needs a narrow type and a comment that says why."""
    lines = module.text.splitlines()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and is_silent(node):
            said = any("#" in line for line in lines[node.lineno - 1 : node.body[-1].end_lineno])
            if caught(node.type) & BROAD:
                yield Finding(module.path, node.lineno, "a silent except of everything; count it and say it once")
            elif not said:
                yield Finding(module.path, node.lineno, "a silent except; say in a comment why nothing is to be done")
        elif isinstance(node, ast.Call) and suppresses_all(node):
            yield Finding(module.path, node.lineno, "suppresses everything; name the exceptions, or count them")


def global_state(module: Module) -> Iterator[Finding]:
    """Refuse the `global` statement."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            text = f"global {', '.join(node.names)}; keep state in an object that a test can make twice"
            yield Finding(module.path, node.lineno, text)


def top_names(module: Module) -> Iterator[Finding]:
    """Keep the names of the top package few."""
    if module.name != "stepscope":
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and any(name_of(target) == "__all__" for target in node.targets):
            names = ast.literal_eval(node.value)
            if len(names) > TOP_NAMES:
                text = f"{len(names)} names at the top, limit {TOP_NAMES}; export the new one from its own module"
                yield Finding(module.path, node.lineno, text)


def sleeps(call: ast.Call) -> bool:
    """Tell whether a call pauses; `sleep(0)` only lets others run."""
    at_once = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    return name_of(call.func) in SLEEPS and not at_once


def stated_rules(module: Module) -> Iterator[Finding]:
    """Ask of every test the one sentence that states its rule, and that it does not sleep."""
    for function in functions(module.tree):
        if function.name.startswith("test") and not ast.get_docstring(function):
            yield Finding(module.path, function.lineno, f"{function.name} states no rule; add a one-sentence docstring")
    if not module.name.startswith(REAL_PROCESSES):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and sleeps(node):
                yield Finding(module.path, node.lineno, "sleeps; hand in a clock, or step the thing under test")


def repeated_classes(modules: Sequence[Module]) -> Iterator[Finding]:
    """Refuse a class name that another module has already: a name stands for one thing."""
    first: dict[str, Module] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and first.setdefault(node.name, module) is not module:
                text = f"{first[node.name].name} has a class {node.name} too; give one of them a name of its own"
                yield Finding(module.path, node.lineno, text)


SIZE: list[Callable[[Module], Iterator[Finding]]] = [file_size, block_size, naming]
STYLE: list[Callable[[Module], Iterator[Finding]]] = [documentation, typing_of, silence, global_state]
PACKAGE_RULES = [*SIZE, *STYLE, top_names, forbidden_findings]
TOOL_RULES = [*SIZE, *STYLE]
TEST_RULES: list[Callable[[Module], Iterator[Finding]]] = [file_size, naming, stated_rules]


def findings(root: Path) -> tuple[list[Finding], int]:
    """Return every finding in the repository, and the number of files read."""
    groups = [
        (package_modules(root), PACKAGE_RULES),
        (folder_modules(root, "tools", "scripts"), TOOL_RULES),
        (folder_modules(root, "bench", "examples"), SIZE),
        (folder_modules(root, "tests"), TEST_RULES),
    ]
    found = [finding for modules, rules in groups for module in modules for rule in rules for finding in rule(module)]
    found += repeated_classes(groups[0][0])
    return found, sum(len(modules) for modules, _ in groups)


def main(argv: list[str]) -> int:
    """Check the repository and return the exit code."""
    root = root_argument(argv)
    found, count = findings(root)
    return report(found, f"{count} files within the limits", root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
