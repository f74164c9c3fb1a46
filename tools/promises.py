"""Count the promises that tests prove: `python tools/promises.py [--check IDS]`.

A test that proves a promise carries `@pytest.mark.promise("S0-003")`. The ids come from
`../shared/reference/promises.md` where that file is; without it only what the tests name is listed.
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

from sources import ROOT, Finding, Module, folder_modules, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def proofs(root: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return the tests of each promise id, and what is wrong with markers."""
    proved: dict[str, list[str]] = {}
    problems = []
    for module in folder_modules(root, "tests"):
        for promise, test, finding in marks(module, root):
            if finding:
                problems.append(finding.show(root))
            elif test not in proved.setdefault(promise, []):
                proved[promise].append(test)
    return proved, problems


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


def show(promises: list[Promise], proved: dict[str, list[str]]) -> None:
    """Print which promises are proved and by which test, which are open, and how many of each."""
    for promise in promises:
        tests = proved.get(promise.id)
        print(f"{'proved' if tests else 'open  '} {promise.id}  {promise.text}")
        for test in tests or []:
            print(f"         {test}")
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
    options = parser.parse_args(argv)
    promises = read_promises(options.list or options.root.parent / "shared" / "reference" / "promises.md")
    proved, problems = proofs(options.root)
    problems += unknown(proved, promises)
    if options.check is None:
        show(promises, proved)
    else:
        missing = [name for name in wanted(options.check, promises) if name not in proved] if promises else []
        problems += [f"open: {promise.id}  {promise.text}" for promise in promises if promise.id in missing]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
