"""Dumps of PyTorch's flight recorder: one file per rank, as a pickle of plain data or as JSON.

Formats 2.0 to 2.10 are read. torch writes them when a collective times out, or on request: `_dump_<rank>`,
`nccl_trace_rank_<rank>`, `comm_lib_trace_rank_<rank>`, or any prefix and the rank.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import DAY, format_bytes, format_duration
from stepscope.importers.plain_pickle import MOST_BYTES, CutPickleError, read_plain, read_plain_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MOST_FILES = 16_384
"""Dumps that are read of one job."""
MOST_TOTAL = 2 << 30
"""Bytes that are read of all dumps of one job."""
MOST_VALUES = 8_000_000
"""Values in a dump as JSON: a list takes 3 bytes in the file and 64 in memory."""
MOST_GROUPS = 4096
"""Groups of a dump that tell its rank."""
HIGHEST_RANK = 2**31 - 1
FORMATS = ("2",)
"""Major versions that are known."""
NAMES = re.compile(
    r"^(_dump_|nccl_trace_rank_|comm_lib_trace_rank_|.*(?:trace|dump|fr)[^/]*?[_-])(\d{1,9})(\.json|\.pkl)?$"
)
"""Names of dumps in a folder; elsewhere any name that ends with a number is taken."""
_ENDS = re.compile(r"(\d{1,9})(?:\.json|\.pkl|\.pickle)?$")


@dataclass
class Dumps:
    """The dumps of one job."""

    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By rank, with torch's keys."""
    problems: list[str] = field(default_factory=list)
    """What could not be used, one sentence each."""
    cut: set[int] = field(default_factory=set)
    """Ranks whose dump is not whole: what is missing in it says nothing, and they may have no record at all."""


def read_dumps(paths: Sequence[Path]) -> Dumps:
    """Read files and folders of dumps; what cannot be used is reported in `problems`, and the rest is used."""
    found = Dumps()
    left, files = MOST_TOTAL, _files(paths, found.problems)
    if len(files) > MOST_FILES:
        found.problems.append(f"{len(files) - MOST_FILES} of {len(files)} files were passed over: too many for one job")
    sources: dict[int, Path] = {}
    renamed: list[tuple[Path, int, dict[str, Any], bool]] = []
    for path in files[:MOST_FILES]:
        named = _ENDS.search(path.name)
        try:
            data = _bytes(path, left)
            facts, is_cut = _whole_or_start(data)
            rank = rank_of(path.name, facts)
        except (OSError, ValueError, RecursionError) as error:
            found.problems.append(f"{path}: not used: {_reason(error)}")
            if path.is_file() and named is not None:
                found.cut.add(int(named[1]))
            continue
        left -= len(data)
        if named is not None and int(named[1]) != rank:
            renamed.append((path, rank, facts, is_cut))
        else:
            _keep(found, sources, path, rank, facts, is_cut=is_cut)
    for path, rank, facts, is_cut in renamed:
        if rank not in sources:
            found.problems.append(f"{path}: used as the dump of rank {rank}, by its groups")
        _keep(found, sources, path, rank, facts, is_cut=is_cut)
    _leave_other_jobs(found, sources)
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its lists are nested too deep"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _keep(
    found: Dumps, sources: dict[int, Path], path: Path, rank: int, facts: dict[str, Any], *, is_cut: bool
) -> None:
    """Keep the first dump of each rank."""
    if rank in found.records:
        found.problems.append(f"{path}: not used: {sources[rank].name} is of rank {rank}, too")
        return
    found.records[rank], sources[rank] = facts, path
    if is_cut:
        found.cut.add(rank)
        found.problems.append(f"{path}: its end is missing; only its start is used")


def _whole_or_start(data: bytes) -> tuple[dict[str, Any], bool]:
    """Return a dump, and whether its end is missing; ValueError if nothing of it can be used."""
    try:
        return parse(data), False
    except CutPickleError as error:
        return _dump(error.start), True


def _bytes(path: Path, left: int) -> bytes:
    if not path.exists():
        raise ValueError("it does not exist")
    if not path.is_file():  # a pipe would never end
        raise ValueError("it is no file")
    size, most = path.stat().st_size, min(MOST_BYTES, left)
    if size > most:
        raise ValueError(f"it has {format_bytes(size)}, a dump has at most {format_bytes(most)}")
    with path.open("rb") as file:
        return file.read(most)


def parse(data: bytes) -> dict[str, Any]:
    """Return one dump, with torch's keys; ValueError if it is none."""
    if not data:
        raise ValueError("it is empty")
    text = data.lstrip()[:1] == b"{"
    if text and sum(map(data.count, (b",", b"{", b"["))) > MOST_VALUES:
        raise ValueError("it holds more values than a dump may")
    return _dump(json.loads(data) if text else read_plain(data))


def parse_live(data: bytes) -> dict[str, Any]:
    """Return what a live rank dumped: one record, or those of NCCL and of the other backends; ValueError if none.

    It is the one in which the rank waits, otherwise the first with anything in it.
    """
    dumps = [_dump(facts) for facts in read_plain_each(data)]
    if not dumps:
        raise ValueError("it is empty")
    return max(dumps, key=lambda facts: (_waits(facts), bool(facts.get("entries"))))


def _waits(facts: dict[str, Any]) -> bool:
    rows = facts.get("entries")
    return isinstance(rows, list) and any(
        isinstance(row, dict) and row.get("state") != "completed" and row.get("retired") is not True for row in rows
    )


def _dump(facts: Any) -> dict[str, Any]:
    if not isinstance(facts, dict) or not ("entries" in facts or "pg_config" in facts):
        raise ValueError("it is no dump of PyTorch's flight recorder")
    version = facts.get("version")
    if isinstance(version, str) and version.partition(".")[0] not in FORMATS:
        raise ValueError(f"its format is {version[:20]}, only 2.x is known")
    return facts


def rank_of(name: str, facts: dict[str, Any]) -> int:
    """Return the rank that wrote a dump: by its own word, by the name of its file, or by its groups.

    A rank records only groups that it is in, so a file with the name of another rank was renamed.

    Raises:
        ValueError: its rank is unknown.
    """
    own = facts.get("rank")
    if isinstance(own, int) and not isinstance(own, bool) and 0 <= own <= HIGHEST_RANK:
        return own
    match, common = _ENDS.search(name), _common(facts)
    if match is not None and (common is None or int(match[1]) in common):
        return int(match[1])
    if common is not None and len(common) == 1:
        return common.pop()
    if match is not None:
        raise ValueError(f"rank {int(match[1])} is not in the groups that it names")
    raise ValueError("its name does not end with a rank, as in _dump_3")


def world_of(facts: dict[str, Any]) -> int:
    """Return how many ranks the default group of a dump has; 0 if it names none."""
    config = facts.get("pg_config")
    for name, one in config.items() if isinstance(config, dict) else ():
        ranks = one.get("ranks") if isinstance(one, dict) and one.get("desc") == "default_pg" and name == "0" else None
        if isinstance(ranks, str):
            return len(_numbers(ranks))
    return 0


def _numbers(ranks: str) -> list[str]:
    return re.findall(r"\d{1,9}", ranks[: 1 << 20])


def _common(facts: dict[str, Any]) -> set[int] | None:
    """Return the ranks that are in all groups of a dump, as its own rank is; None if it names no group."""
    config = facts.get("pg_config")
    groups = [one.get("ranks") for one in config.values() if isinstance(one, dict)] if isinstance(config, dict) else []
    found = None
    for ranks in groups[:MOST_GROUPS]:
        members = set(_numbers(ranks)) if isinstance(ranks, str) else set()
        if members:
            found = members if found is None else found & members
    return None if found is None else {int(rank) for rank in found}


def newest(facts: dict[str, Any]) -> float | None:
    """Return when the newest collective of a dump was enqueued, in seconds since 1970; None if it holds none."""
    rows = facts.get("entries")
    times = [row.get("time_created_ns") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return max((time / 1e9 for time in times if isinstance(time, int) and 0 <= time < 2**63), default=None)


def _files(paths: Iterable[Path], problems: list[str]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        try:
            inside = sorted(entry for entry in path.iterdir() if NAMES.match(entry.name))
        except OSError as error:
            problems.append(f"{path}: not used: {error.strerror}")
            continue
        if not inside:
            problems.append(f"{path}: not used: no file in it is named like a dump, such as _dump_0")
        found += inside
    return found


def _leave_other_jobs(found: Dumps, sources: dict[int, Path]) -> None:
    """Leave out dumps of another job or of another day."""
    worlds = {rank: world_of(facts) for rank, facts in found.records.items()}
    times = {rank: when for rank, facts in found.records.items() if (when := newest(facts)) is not None}
    sizes = [size for size in worlds.values() if size]
    usual = max(sizes, key=lambda size: (sizes.count(size), size), default=0)
    middle = sorted(times.values())[len(times) // 2] if times else 0.0
    for rank in list(found.records):
        text = ""
        if worlds[rank] and worlds[rank] != usual:
            text = f"it is of a job of {worlds[rank]} ranks, most of the others are of one of {usual}"
        elif abs(times.get(rank, middle) - middle) > DAY:
            text = f"its newest collective is {format_duration(abs(times[rank] - middle))} from that of the others"
        if text:
            del found.records[rank]
            found.problems.append(f"{sources[rank]}: not used: {text}")
