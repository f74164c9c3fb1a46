from __future__ import annotations

import json
import os
import subprocess
import time
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.core.redact import REDACTED, redact
from stepscope.core.run_description import ENVIRONMENT, arguments, container, describe, git, memory, packages, variables

if TYPE_CHECKING:
    from pathlib import Path

SHA = "0123456789abcdef0123456789abcdef01234567"


def repository(folder: Path, head: str, **files: str) -> str:
    """Lay out the files of a repository."""
    for name, text in {"HEAD": head, **files}.items():
        path = folder / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def test_describe(tmp_path):
    """The description is strict JSON and has every part, secrets aside."""
    environ = {"RANK": "1", "MY_TOKEN": "canary", "SLURM_JOB_NAME": "https://u:canary@x", "HOME": "/root/canary"}
    found = describe(environ, argv=["t.py", "--api-key", "canary"], config={"password": "canary"}, cwd=str(tmp_path))
    text = json.dumps(found, allow_nan=False)
    assert "canary" not in text
    assert found["environment"] == {"SLURM_JOB_NAME": f"https://{REDACTED}@x", "RANK": "1"}
    assert found["argv"] == ["t.py", "--api-key", REDACTED]
    assert found["packages"]["numpy"] == np.__version__
    assert found["cpu"]["count"] == os.cpu_count()
    assert found["memory"]["total_bytes"] > 2**20
    assert {"host", "platform", "python", "pid", "cwd", "config", "git", "container"} <= found.keys()


def test_cheap(tmp_path):
    """Describing a usual program takes a small part of init's 100 ms."""
    config = {f"option_{index}": "a text of usual length" for index in range(200)}
    costs = []
    for _ in range(5):  # what a busy machine adds to one is not ours
        start = time.process_time()
        describe(os.environ, argv=["train.py", *["--x=1"] * 50], config=config, cwd=str(tmp_path))
        costs.append(time.process_time() - start)
    assert min(costs) < 0.5, "five times of it is what the slowest machine may take"


class Bomb(dict):
    """Fails at every touch."""

    def _boom(self, *_: object):
        raise RuntimeError

    __contains__ = __getitem__ = keys = items = get = __iter__ = _boom


def test_never_raises():
    """Each part that cannot be read is None, and the others are still there."""
    found = describe(Bomb(), argv=["a"], config=Bomb(), cwd="\0", modules=Bomb(), root="\0")
    assert found["environment"] is None
    assert found["packages"] is None
    assert found["git"] is None
    assert found["argv"] == ["a"]
    json.dumps(found, allow_nan=False)


def test_allow_list_is_harmless():
    """No variable on the allow-list has the name of a secret."""
    assert not [name for name in ENVIRONMENT if redact({name: "a-word"})[name] == REDACTED]


def test_sizes():
    """Long command lines and variables are cut."""
    shown = arguments(["x" * 10**6] * 1000)
    assert len(shown) == 129
    assert shown[-1] == "<872 more>"
    assert max(len(item) for item in shown) < 1100
    assert len(variables({"HOSTNAME": "h" * 10**6})["HOSTNAME"]) < 600


def test_branch(tmp_path):
    """Commit and branch are read from the files, from any folder below; dirty is unknown."""
    repository(tmp_path, "ref: refs/heads/feat/x\n", **{"refs/heads/feat/x": SHA + "\n"})
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert git(str(tmp_path / "a" / "b")) == {"commit": SHA, "branch": "feat/x", "dirty": None}


def test_detached(tmp_path):
    """A detached head has a commit and no branch."""
    assert git(repository(tmp_path, SHA)) == {"commit": SHA, "branch": None, "dirty": None}


def test_packed(tmp_path):
    """Packed refs are found by their whole name."""
    packed = f"# pack-refs\n{'1' * 40} refs/heads/main2\n{SHA} refs/heads/main\n^{'2' * 40}\n"
    assert git(repository(tmp_path, "ref: refs/heads/main", **{"packed-refs": packed}))["commit"] == SHA


def test_worktree(tmp_path):
    """A worktree's `.git` file leads to its own head and to the common refs."""
    private = tmp_path / "main" / ".git" / "worktrees" / "w"
    repository(tmp_path / "main", "ref: refs/heads/main", **{"refs/heads/topic": SHA})
    private.mkdir(parents=True)
    (private / "HEAD").write_text("ref: refs/heads/topic")
    (private / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text(f"gitdir: {private}\n")
    assert git(str(tmp_path / "w")) == {"commit": SHA, "branch": "topic", "dirty": None}


@pytest.mark.parametrize("head", ["", "nonsense", "ref: ../../etc/passwd", "ref: refs/../../x", "\0", "ref:"])
def test_broken_head(tmp_path, head):
    """A broken head is no repository, and no path outside is followed."""
    assert git(repository(tmp_path, head)) is None


def test_no_commit_yet(tmp_path):
    """A fresh repository has a branch and no commit."""
    assert git(repository(tmp_path, "ref: refs/heads/main")) == {"commit": None, "branch": "main", "dirty": None}


def test_late(tmp_path):
    """A file system that is too slow ends the search."""
    ticks = iter([0.0, 5.0])
    assert git(repository(tmp_path, SHA), clock=lambda: next(ticks)) is None


def test_real_git(tmp_path):
    """The answer is git's own, loose and packed."""

    def run(*command: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run("init", "-q", "-b", "trunk")
    run("commit", "-q", "--allow-empty", "-m", "x")
    expected = {"commit": run("rev-parse", "HEAD"), "branch": "trunk", "dirty": None}
    assert git(str(tmp_path)) == expected
    run("pack-refs", "--all")
    assert git(str(tmp_path)) == expected


def test_packages():
    """Versions come from loaded modules' own dictionaries; lazy modules are not woken."""

    class Lazy(ModuleType):
        def __getattr__(self, name: str):
            pytest.fail(f"woke a lazy module for {name}")

    lazy, plain, child = Lazy("transformers"), ModuleType("plain"), ModuleType("odd.version")
    lazy.__dict__["_objects"] = {"__version__": "4.1"}
    plain.__version__ = "1.2"
    child.version = "3"
    loaded = {
        "transformers": lazy,
        "plain": plain,
        "odd": ModuleType("odd"),
        "odd.version": child,
        "re": plain,
        "none": None,
    }
    assert packages(loaded) == {"transformers": "4.1", "plain": "1.2", "odd": "3"}


def test_many_packages():
    """The number of packages is bounded."""
    module = ModuleType("x")
    module.__version__ = "1" * 1000
    found = packages({f"p{index}": module for index in range(1000)})
    assert len(found) == 300
    assert all(len(version) < 100 for version in found.values())


def test_container(tmp_path):
    """The kind of container is told from variables and marks."""
    assert container({}, str(tmp_path)) is None
    (tmp_path / ".dockerenv").touch()
    assert container({}, str(tmp_path)) == "docker"
    assert container({"KUBERNETES_SERVICE_HOST": "x"}, str(tmp_path)) == "kubernetes"


def test_memory_limit(tmp_path):
    """The container's memory limit is read in bytes, and no limit is None."""
    place = tmp_path / "sys/fs/cgroup"
    place.mkdir(parents=True)
    (place / "memory.max").write_text("max\n")
    assert memory(str(tmp_path))["limit_bytes"] is None
    (place / "memory.max").write_text("1073741824\n")
    assert memory(str(tmp_path))["limit_bytes"] == 2**30
