"""Python source files as parsed modules, and the findings that a check reports about them."""

from __future__ import annotations

import ast
import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

gc.disable()  # the trees of 1 200 files stay until the end: looking for garbage among them took half of the time

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "stepscope"


@dataclass(frozen=True, slots=True)
class Module:
    """One parsed source file."""

    path: Path
    name: str
    """Dotted name, without `__init__`."""
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.text.count("\n") + (not self.text.endswith("\n"))

    @property
    def room(self) -> str:
        """First folder or module below the package; the package's own name for its `__init__`."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule and where."""

    path: Path
    line: int
    text: str

    def show(self, root: Path) -> str:
        """Return `path:line: text`, the path relative to the root where it lies below it."""
        path = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        return f"{path}:{self.line}: {self.text}"


def parse(path: Path, base: Path) -> Module:
    """Parse one file; its dotted name is its path below base."""
    parts = list(path.relative_to(base).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    text = path.read_text(encoding="utf-8")
    return Module(path, ".".join(parts[:-1] if is_package else parts), is_package, text, ast.parse(text, str(path)))


def package_modules(root: Path = ROOT) -> list[Module]:
    """Return every module of the package; none if it is not there."""
    base = root / "src"
    return [parse(path, base) for path in sorted((base / PACKAGE).rglob("*.py"))]


def folder_modules(root: Path, *folders: str) -> list[Module]:
    """Return every module in these folders of the repository, those that exist."""
    return [parse(path, root) for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def name_of(node: ast.expr) -> str:
    """Return the dotted name that an expression spells (`yaml.load`), or the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = name_of(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def report(findings: Iterable[Finding], summary: str, root: Path = ROOT) -> int:
    """Print the findings, or the summary if there are none; return the exit code."""
    ordered = sorted(findings, key=lambda finding: (str(finding.path), finding.line, finding.text))
    for finding in ordered:
        print(finding.show(root), file=sys.stderr)
    if not ordered:
        print(summary)
    return 1 if ordered else 0


def root_argument(argv: Sequence[str]) -> Path:
    """Return the repository given as the only argument, else the one that these tools lie in."""
    return Path(argv[0]).resolve() if argv else ROOT
