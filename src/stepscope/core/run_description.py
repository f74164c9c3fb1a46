"""Describe where a run takes place: machine, program, code version, launcher, packages, configuration.

Read once by `init`, so it is cheap: no subprocess, no network, no scan of installed packages. Each part is bounded in
size, the file system parts also by a deadline; an unknown part is None.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.core.redact import jsonable, redact, redact_argv, redact_text
from stepscope.core.walls import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ENVIRONMENT = (
    *("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("SLURM_NNODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_RESTART_COUNT", "SLURMD_NODENAME"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "RANK", "WORLD_SIZE"),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("KUBERNETES_SERVICE_HOST", "POD_NAME", "POD_NAMESPACE", "NODE_NAME", "JOB_COMPLETION_INDEX", "HOSTNAME"),
    *("container", "APPTAINER_NAME", "SINGULARITY_NAME", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "RAY_JOB_ID"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_DEBUG"),
    *("NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("TOKENIZERS_PARALLELISM", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"),
)
"""The only environment variables that are recorded: launcher, container, devices, numerics and speed."""

MAX_ARGUMENTS = 128
MAX_ARGUMENT = 512
"""Characters of an argument that are kept."""
MAX_VARIABLE = 512
MAX_PACKAGES = 300
MAX_REF_FILE = 8 * 2**20
"""Bytes of the largest packed-refs file that is searched."""
DEADLINE = 0.02
"""Seconds after which no further file of the repository is read."""

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def describe(
    environ: Mapping[str, str],
    *,
    argv: Sequence[str],
    config: Any = None,
    cwd: str | None = None,
    modules: Mapping[str, Any] | None = None,
    root: str = "/",
) -> dict[str, Any]:
    """Return the context of this process as plain JSON data without secrets; never raises.

    `config` is the user's configuration, any object; `root` holds `/proc`, `/sys` and the container marks.
    """
    folder = attempt(os.getcwd, lambda _: None) if cwd is None else cwd
    parts: dict[str, Callable[[], Any]] = {
        "host": lambda: os.uname().nodename if hasattr(os, "uname") else environ.get("COMPUTERNAME", "unknown"),
        "platform": _platform,
        "python": _python,
        "pid": os.getpid,
        "cwd": lambda: redact_text(folder) if folder else None,
        "argv": lambda: arguments(argv),
        "config": lambda: redact(jsonable(config)),
        "git": lambda: git(folder) if folder else None,
        "environment": lambda: variables(environ),
        "container": lambda: container(environ, root),
        "packages": lambda: packages(sys.modules if modules is None else modules),
        "cpu": cpu,
        "memory": lambda: memory(root),
    }
    # Describing a run must never keep it from starting: a part that cannot be read is None.
    return {name: attempt(read, lambda _: None) for name, read in parts.items()}


def arguments(argv: Sequence[str]) -> list[str]:
    """Return a command line without secrets, each argument cut, with a mark where more were given."""
    # Twice as long as the part that is kept, so that a token across the cut is still seen whole.
    heads = [str(item)[: 2 * MAX_ARGUMENT] for item in argv[:MAX_ARGUMENTS]]
    shown = [_cut(item, MAX_ARGUMENT) for item in redact_argv(heads)]
    return [*shown, f"<{len(argv) - MAX_ARGUMENTS} more>"] if len(argv) > MAX_ARGUMENTS else shown


def _cut(text: str, limit: int) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= limit else f"{clean[:limit]}<cut>"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the allowed variables that are set, in the order of ENVIRONMENT."""
    heads = {name: environ[name][: 2 * MAX_VARIABLE] for name in ENVIRONMENT if name in environ}
    return {name: _cut(redact_text(text), MAX_VARIABLE) for name, text in heads.items()}


def _platform() -> dict[str, str]:
    """Return the operating system; the module `platform` would read the interpreter's binary for it."""
    if not hasattr(os, "uname"):
        return {"system": sys.platform}
    name = os.uname()
    return {"system": name.sysname, "release": name.release, "machine": name.machine}


def _python() -> dict[str, str]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return {"version": version, "implementation": sys.implementation.name, "executable": sys.executable or ""}


def cpu() -> dict[str, int | None]:
    """Return the logical processors of the machine and those that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"count": os.cpu_count(), "usable": usable}


def memory(root: str = "/") -> dict[str, int | None]:
    """Return the machine's memory and the limit of this container, in bytes; None without one."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    files = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
    texts = (_read(Path(root) / name, 64).strip() for name in files)
    # Version 1 writes "no limit" as a number near 2**63.
    limit = next((int(text) for text in texts if text.isdecimal() and int(text) < 2**60), None)
    return {"total_bytes": total, "limit_bytes": limit}


def container(environ: Mapping[str, str], root: str = "/") -> str | None:
    """Return the kind of container this process runs in; None where there is no sign of one."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if {"APPTAINER_NAME", "SINGULARITY_NAME", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"} & environ.keys():
        return "apptainer"
    marks = {".dockerenv": "docker", "run/.containerenv": "podman"}
    found = [kind for name, kind in marks.items() if (Path(root) / name).exists()]
    return found[0] if found else environ.get("container") or None


def packages(modules: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the third-party packages that are already loaded, by name.

    Reads module dictionaries only: asking a lazy module for an attribute may import half of it.
    """
    found: dict[str, str] = {}
    for name, module in sorted(modules.items(), key=lambda item: str(item[0])):
        is_foreign = "." not in name and not name.startswith("_") and name not in sys.stdlib_module_names
        version = _version(name, module, modules) if is_foreign and isinstance(module, ModuleType) else None
        if version:
            found[name] = _cut(version, 64)
        if len(found) >= MAX_PACKAGES:
            break
    return found


def _version(name: str, module: ModuleType, modules: Mapping[str, Any]) -> str | None:
    own = vars(module)
    lazy = own.get("_objects")  # transformers and diffusers keep their attributes there
    candidates = [own.get("__version__"), lazy.get("__version__") if isinstance(lazy, dict) else None]
    for part in ("version", "_version", "__version__"):
        child = modules.get(f"{name}.{part}")
        if isinstance(child, ModuleType):
            candidates += [vars(child).get("__version__"), vars(child).get("version")]
    return next((str.__str__(item) for item in candidates if isinstance(item, str)), None)


def git(folder: str, clock: Callable[[], float] = time.monotonic) -> dict[str, Any] | None:
    """Return commit and branch of the repository around a folder, read from its files; None if there is none.

    `folder` must be absolute. `dirty` is None, unknown: finding out needs a look at every file. After DEADLINE seconds
    of `clock` no further file is read.
    """
    end = clock() + DEADLINE
    start = Path(folder)
    for place in [start, *start.parents][:40] if start.is_absolute() else []:
        if clock() > end:
            return None
        mark = place / ".git"
        if mark.exists():
            directory = _git_directory(mark)
            return None if directory is None else _head(directory, lambda: clock() > end)
    return None


def _git_directory(mark: Path) -> Path | None:
    """Return the repository's directory; in worktrees and submodules `.git` is a file that names it."""
    if mark.is_dir():
        return mark
    text = _read(mark, 4096)
    if not text.startswith("gitdir:"):
        return None
    return mark.parent / text.removeprefix("gitdir:").strip()


def _head(directory: Path, is_late: Callable[[], bool]) -> dict[str, Any] | None:
    head = _read(directory / "HEAD", 4096).strip()
    if COMMIT.fullmatch(head):
        return {"commit": head, "branch": None, "dirty": None}
    ref = head.removeprefix("ref:").strip()
    if not head.startswith("ref:") or not ref.startswith("refs/") or ".." in ref:
        return None
    common = _read(directory / "commondir", 4096).strip()
    homes = [directory, directory / common] if common else [directory]
    commit = None if is_late() else _resolve(homes, ref)
    branch = redact_text(ref.removeprefix("refs/heads/"))
    return {"commit": commit, "branch": None if branch == ".invalid" else branch, "dirty": None}


def _resolve(homes: list[Path], ref: str) -> str | None:
    """Return the commit of a ref, from its own file or from the packed refs; None if it has none yet."""
    for home in homes:
        commit = _read(home / ref, 128).strip()
        if COMMIT.fullmatch(commit):
            return commit
    packed = _read(homes[-1] / "packed-refs", MAX_REF_FILE)
    found = re.search(rf"^([0-9a-f]{{40,64}}) {re.escape(ref)}$", packed, re.MULTILINE)
    return found[1] if found else None


def _read(path: Path, limit: int) -> str:
    """Return the start of a small text file; empty if it cannot be read. Pipes and devices are not opened."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
