"""Count the promises that tests prove: `python tools/promises.py [--check IDS]`.

A test that proves a promise carries `@pytest.mark.promise("S0-003")`. It counts if it passed in the last `make test`
(one that was skipped or expected to fail does not) and if it can fail: it, or a function of the tests that it calls,
asserts something. The ids come from `../shared/reference/promises.md`; without it only marked ids are listed.
IDS is a list such as `S0.1,S0-074-S0-076,X-01` (a section, a range, one id);
with it the exit code is 1 while one is open.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from sources import ROOT, Finding, Module, folder_modules, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = Path(".pytest_cache") / "report.xml"
"""JUnit report of the last `make test`, relative to the repository."""
RAISING = {"raises", "warns", "fail", "deprecated_call"}
"""Functions of pytest that fail a test."""
ONE = r"(?:S\d-\d{3}|X-\d{2})"
PROMISE = re.compile(rf"^- \[.\] ({ONE}) (.*)$")
SECTION = re.compile(r"^### (S\d+\.\d+)\b")


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the list of promises."""

    id: str
    section: str
    text: str


def read_promises(path: Path) -> list[Promise]:
    """Return the promises of the list, in its order; none if the file is not there."""
    if not path.exists():
        return []
    found = []
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if heading := SECTION.match(line):
            section = heading[1]
        elif match := PROMISE.match(line):
            found.append(Promise(match[1], section, match[2]))
    return found


def marks(module: Module, root: Path) -> Iterator[tuple[str, str, Finding | None]]:
    """Yield id and test of each promise marker in a file; a finding where the id is not a plain string."""
    where = module.path.relative_to(root)

    def visit(node: ast.AST, scope: str) -> Iterator[tuple[str, str, Finding | None]]:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            scope = f"{scope}::{node.name}"
        if isinstance(node, ast.Call) and name_of(node.func).endswith("mark.promise"):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, scope, None
                else:
                    yield "", scope, Finding(module.path, node.lineno, "a promise's id must be a plain string")
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)

    return visit(module.tree, str(where))


def passed_tests(report: Path) -> set[str]:
    """Return the tests with a case that passed, as `path::name` without parameters.

    Raises:
        FileNotFoundError: there is no report.
    """
    passed = set()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        if not any(case.find(outcome) is not None for outcome in ("failure", "error", "skipped")):
            module, name = case.get("classname", ""), case.get("name", "").partition("[")[0]
            passed.add(f"{module}.{name}")
    return passed


def asserting_names(modules: list[Module]) -> set[str]:
    """Return the names of the functions that assert something, directly or through another function."""
    bodies: dict[str, list[ast.AST]] = {}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                bodies.setdefault(node.name, []).append(node)
    known: set[str] = set()
    while True:
        more = {name for name, found in bodies.items() if any(can_fail(body, known) for body in found)}
        if more == known:
            return known
        known = more


def can_fail(body: ast.AST, asserting: set[str]) -> bool:
    """Return whether code asserts something or calls one of the functions that do."""
    for node in ast.walk(body):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else name_of(node.func)
            checked = any(word.arg == "check" and getattr(word.value, "value", False) is True for word in node.keywords)
            if called in asserting or called in RAISING or checked:
                return True
    return False


def failing_tests(modules: list[Module]) -> set[str]:
    """Return the tests that can fail, as `module.name`."""
    asserting = asserting_names(modules)
    found = set()
    for module in modules:
        for node in module.tree.body:
            parts = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{module.name}.{node.name}" if isinstance(node, ast.ClassDef) else module.name
            for part in parts:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and can_fail(part, asserting):
                    found.add(f"{prefix}.{part.name}")
    return found


def proofs(root: Path, report: Path | None) -> tuple[dict[str, list[str]], dict[str, list[str]], list[str]]:
    """Return the tests of each promise that count, those that do not, and the problems with markers.

    Without a report no test counts.
    """
    modules = folder_modules(root, "tests")
    counted = passed_tests(report) & failing_tests(modules) if report is not None else set()
    proved: dict[str, list[str]] = {}
    unproved: dict[str, list[str]] = {}
    problems = []
    for module in modules:
        for promise, test, finding in marks(module, root):
            name = ".".join([module.name, *test.split("::")[1:]])
            counts = any(other == name or other.startswith(f"{name}.") for other in counted)
            tests = (proved if counts else unproved).setdefault(promise, []) if finding is None else []
            if finding:
                problems.append(finding.show(root))
            elif test not in tests:
                tests.append(test)
    return proved, unproved, problems


def unknown(proved: dict[str, list[str]], promises: list[Promise]) -> list[str]:
    """Return a message for each marker whose id is not in the list, or has not the form of one."""
    ids = {promise.id for promise in promises}
    bad = [name for name in proved if (name not in ids if ids else not re.fullmatch(ONE, name))]
    return [f"{test}: no promise has the id {name!r}" for name in sorted(bad) for test in proved[name]]


def wanted(spec: str, promises: list[Promise]) -> list[str]:
    """Return the ids that a list of sections, ranges and ids stands for; raise ValueError on an unknown part."""
    ids = [promise.id for promise in promises]
    found: list[str] = []
    for part in filter(None, re.split(r"[,\s]+", spec)):
        ends = re.fullmatch(rf"({ONE})(?:[-\u2013]({ONE}))?", part)
        if ends and ends[1] in ids and (ends[2] or ends[1]) in ids:
            found += ids[ids.index(ends[1]) : ids.index(ends[2] or ends[1]) + 1]
        elif members := [promise.id for promise in promises if promise.section == part]:
            found += members
        else:
            msg = f"{part!r} is no section, range or id of the list"
            raise ValueError(msg)
    return found


def show(promises: list[Promise], proved: dict[str, list[str]], unproved: dict[str, list[str]]) -> None:
    """Print which promises are proved and by which test, which are open, and how many of each."""
    for promise in promises:
        tests = proved.get(promise.id)
        print(f"{'proved' if tests else 'open  '} {promise.id}  {promise.text}")
        for test in tests or []:
            print(f"         {test}")
        for test in unproved.get(promise.id, []):
            print(f"         {test}: does not count, for it did not pass or asserts nothing")
    if promises:
        count = sum(promise.id in proved for promise in promises)
        print(f"{count} of {len(promises)} promises proved, {len(promises) - count} open")
    else:
        for name, tests in sorted(proved.items()):
            print(f"proved {name}  {', '.join(tests)}")
        print(f"{len(proved)} promises proved; the list of all is not here")


def main(argv: list[str]) -> int:
    """Print the count and return the exit code: 1 for an unknown id, or an open one that --check asks for."""
    parser = argparse.ArgumentParser(description="Count the promises that tests prove.")
    parser.add_argument("--check", metavar="IDS", help="fail while one of these is open: sections, ranges, ids")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("--list", type=Path, help="the list of promises (default: ../shared/reference/promises.md)")
    parser.add_argument("--report", type=Path, help=f"JUnit report of a test run (default: {REPORT})")
    parser.add_argument("--markers", action="store_true", help="only check that each marker names a promise")
    options = parser.parse_args(argv)
    report = None if options.markers else options.report or options.root / REPORT
    if report is not None and not report.exists():
        print(f"cannot count promises: {report} is missing; run `make test`, which writes it", file=sys.stderr)
        return 1
    promises = read_promises(options.list or options.root.parent / "shared" / "reference" / "promises.md")
    proved, unproved, problems = proofs(options.root, report)
    problems += unknown(proved | unproved, promises)
    if options.check is None and report is not None:
        show(promises, proved, unproved)
    elif options.check is not None:
        missing = [name for name in wanted(options.check, promises) if name not in proved] if promises else []
        problems += [f"open: {promise.id}  {promise.text}" for promise in promises if promise.id in missing]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
