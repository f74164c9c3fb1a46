from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.core.errors import StepscopeError
from stepscope.store.layout import FOLDERS, RunFolder
from stepscope.store.points import Points
from stepscope.store.retention import (
    DAY,
    GIB,
    Candidate,
    RetentionLimits,
    apply,
    clear,
    find_candidates,
    leftovers,
    plan,
    remove,
)
from stepscope.store.sealed import write_sealed
from stepscope.store.states import NodeState, RankState
from tests.integration.processes import until, watchers

pytestmark = pytest.mark.processes

NOW = 1_800_000_000.0


def make_run(root, name, days=0.0, state="finished", project="p", payload=0, ended=True):
    """Make the folder of a run whose last sign of life was `days` before now."""
    folder = RunFolder(root / project / name)
    folder.make()
    when = int((time.time() - days * DAY) * 1e6)
    folder.describe({"format": 1, "id": name, "name": name, "project": project, "created": when})
    node = NodeState(
        "host.abc", 0, 1, when, 0, "another boot", ended, {0: RankState(state, ended=when if ended else None)}
    )
    node.save(folder)
    (folder.path / "metrics" / "payload").write_bytes(bytes(payload))
    past = when / 1e6 - 1
    for path in (folder.path / "claims", folder.path / "nodes" / "host.abc-0.json"):
        os.utime(path, (past, past))
    return folder.path


def names(removals):
    return [removal.path.name for removal in removals]


def candidate(name, days, size=GIB, running=False):
    return Candidate(Path(name), size, NOW - days * DAY, running)


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        (RetentionLimits(), []),
        (RetentionLimits(max_age_days=2.5), ["three"]),
        (RetentionLimits(max_runs=1), ["three", "two"]),
        (RetentionLimits(max_size_gb=2.0), ["three"]),
        (RetentionLimits(max_size_gb=0.5, max_runs=2), ["three", "two", "one"]),
    ],
)
@pytest.mark.promise("S1-059")
def test_oldest_go_first_until_the_limits_hold(limits, gone):
    """The oldest runs go until the others are within every limit; 0 is no limit."""
    found = [candidate("one", 1), candidate("three", 3), candidate("two", 2)]
    assert names(plan(found, limits, NOW)) == gone


def test_a_running_run_counts_and_stays():
    """A running run counts towards the limits, and a younger one goes in its place."""
    found = [candidate("old", 9, running=True), candidate("young", 1)]
    assert names(plan(found, RetentionLimits(max_runs=1), NOW)) == ["young"]
    assert names(plan(found, RetentionLimits(max_age_days=5), NOW)) == []


runs = st.builds(
    Candidate,
    st.integers(0, 10**6).map(lambda number: Path(str(number))),
    st.integers(0, 4 * GIB),
    st.floats(NOW - 100 * DAY, NOW),
    st.booleans(),
)
limits_ = st.builds(RetentionLimits, st.floats(0, 10), st.floats(0, 50), st.integers(0, 10))


@given(st.lists(runs, max_size=12, unique_by=lambda run: run.path), limits_)
def test_plan_keeps_within_the_limits(found, limits):
    """Nothing running goes, and what stays is within the limits or running."""
    gone = {removal.path for removal in plan(found, limits, NOW)}
    left = [run for run in found if run.path not in gone]
    idle = [run for run in left if not run.running]
    assert not [run for run in found if run.running and run.path in gone]
    if idle:
        assert not limits.max_runs or len(left) <= limits.max_runs
        assert not limits.max_size_gb or sum(run.bytes for run in left) <= limits.max_size_gb * GIB
        assert not limits.max_age_days or all(NOW - run.seen <= limits.max_age_days * DAY for run in idle)


def test_reasons_say_the_limit():
    """Each removal says which limit asks for it."""
    [removal] = plan([candidate("old", 9)], RetentionLimits(max_age_days=5), NOW)
    assert (removal.bytes, removal.reason) == (GIB, "older than 5 days")


@pytest.mark.parametrize(
    ("state", "days", "ended", "running"),
    [
        ("finished", 0.1, True, False),
        ("killed", 0.1, True, False),
        ("running", 0.1, False, True),
        ("running", 2.0, False, False),
    ],
)
def test_what_counts_as_running(tmp_path, state, days, ended, running):
    """A run that never ended may still be written until it has been silent for a day."""
    make_run(tmp_path, "a", days, state, ended=ended)
    assert [found.running for found in find_candidates(tmp_path)] == [running]


def test_a_run_that_was_just_joined_is_running(tmp_path):
    """A process that has joined a finished run keeps it, before its watcher has written."""
    path = make_run(tmp_path, "a", days=3)
    RunFolder(path).claim(1, 0)
    assert find_candidates(tmp_path)[0].running


def test_what_is_not_a_run_is_left_alone(tmp_path):
    """Folders without a run.json of ours, links, and runs of a newer format are no candidates."""
    make_run(tmp_path, "real")
    (tmp_path / "p" / "notes").mkdir()
    foreign = tmp_path / "p" / "foreign"
    foreign.mkdir()
    (foreign / "run.json").write_text('{"id": "x"}')
    newer = make_run(tmp_path, "newer")
    (newer / "run.json").write_text(json.dumps({"format": 99, "id": "newer"}))
    bare = tmp_path / "p" / "bare"
    bare.mkdir()
    (bare / "run.json").write_text(json.dumps({"format": 1, "id": "bare"}))
    (tmp_path / "linked").symlink_to(tmp_path / "p")
    assert [found.path.name for found in find_candidates(tmp_path)] == ["real"]


def test_apply_removes_and_keeps(tmp_path):
    """Runs beyond the limits are deleted; the one to keep counts and stays, however old it is."""
    paths = {name: make_run(tmp_path, name, days) for name, days in (("old", 5), ("mid", 4), ("new", 1))}
    gone = apply(tmp_path, RetentionLimits(max_runs=2), keep=[paths["old"]])
    assert names(gone) == ["mid"]
    assert sorted(os.listdir(tmp_path / "p")) == ["new", "old"]


def test_apply_without_limits_does_nothing(tmp_path):
    """No limit, no removal."""
    make_run(tmp_path, "old", days=500)
    assert apply(tmp_path, RetentionLimits()) == []


@pytest.mark.promise("S1-059")
def test_size_limit_in_gib_is_of_the_documents_key(tmp_path):
    """`max_database_size_gb` becomes a limit in GiB over all runs together."""
    from stepscope.core.config import load

    config = load(settings={"performance_tuning": {"max_database_size_gb": 0.001}})
    for name, days in (("old", 2), ("new", 1)):
        make_run(tmp_path, name, days, payload=700_000)
    assert names(apply(tmp_path, RetentionLimits.of(config.values))) == ["old"]


def test_remove_follows_no_link(tmp_path):
    """What links inside a run point at stays."""
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("x")
    path = make_run(tmp_path / "runs", "a")
    (path / "metrics" / "link").symlink_to(treasure)
    (path / "file-link").symlink_to(treasure / "gold")
    remove(path, tmp_path / "runs")
    assert (treasure / "gold").read_text() == "x"
    assert os.listdir(tmp_path / "runs" / "p") == []


@pytest.mark.parametrize("place", ["../elsewhere/p/a", ".", "p/a/metrics", "p/../../elsewhere/p/a"])
def test_remove_stays_below_the_root(tmp_path, place):
    """A path that is not a run's place below the root is refused."""
    make_run(tmp_path / "runs", "a")
    outside = make_run(tmp_path / "elsewhere", "a")
    with pytest.raises(StepscopeError, match="cannot remove run"):
        remove(tmp_path / "runs" / place, tmp_path / "runs")
    assert outside.is_dir()


def test_remove_refuses_a_linked_project(tmp_path):
    """A project that is a link to somewhere else is not entered."""
    outside = make_run(tmp_path / "elsewhere", "a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "p").symlink_to(tmp_path / "elsewhere" / "p")
    with pytest.raises(StepscopeError):
        remove(tmp_path / "runs" / "p" / "a", tmp_path / "runs")
    assert outside.is_dir()


def test_interrupted_deletions_are_ended(tmp_path):
    """A run whose deletion was interrupted is listed nowhere, and its rest goes with the leftovers."""
    path = make_run(tmp_path, "a")
    path.rename(path.with_name(".removing-a-1234"))
    assert stepscope.runs(tmp_path) == []
    [rest] = leftovers(tmp_path)
    clear(rest, tmp_path)
    assert os.listdir(tmp_path / "p") == []


def test_replaced_files_go_after_ten_minutes(tmp_path):
    """Sealed files that a compacted one replaces go, with their companions, once readers had ten minutes."""
    path = make_run(tmp_path, "a")
    stems = ["h.abc-0-0-0", "h.abc-0-1-1", "h.abc-0-0-1", "h.abc-0-2-2"]
    for stem in stems:
        write_sealed(path / "metrics", stem, Points.empty(), last_seq={})
    assert leftovers(tmp_path, time.time() + 500) == []
    gone = leftovers(tmp_path, time.time() + 700)
    assert {name.partition(".parquet")[0].removesuffix(".blocks").removesuffix(".sum") for name in names(gone)} == set(
        stems[:2]
    )
    for leftover in gone:
        clear(leftover, tmp_path)
    assert len(os.listdir(path / "metrics")) == 7


def test_what_a_damaged_file_replaces_stays(tmp_path):
    """The originals of a compacted file that does not match its checksums are not removed."""
    path = make_run(tmp_path, "a")
    for stem in ("h.abc-0-0-0", "h.abc-0-0-1"):
        write_sealed(path / "metrics", stem, Points.empty(), last_seq={})
    with (path / "metrics" / "h.abc-0-0-1.parquet").open("r+b") as file:
        file.write(b"damage")
    assert leftovers(tmp_path, time.time() + 700) == []


def test_old_temporary_files_go(tmp_path):
    """Temporary files go when they are a day old; other hidden files stay."""
    path = make_run(tmp_path, "a")
    kept = [path / "metrics" / ".mine", path / ".hidden"]
    temporary = [
        path / "metrics" / ".tmp-h-0-0-0.parquet",
        path / "nodes" / ".h.abc-0.json.123",
        path / ".run.json.1.ab",
    ]
    for file in [*kept, *temporary]:
        file.write_bytes(b"x")
    assert leftovers(tmp_path, time.time() + DAY / 2) == []
    assert {removal.path for removal in leftovers(tmp_path, time.time() + 2 * DAY)} == set(temporary)


def test_clear_is_content_with_what_is_gone(tmp_path):
    """A leftover that somebody else removed is no problem; one outside the root is refused."""
    path = make_run(tmp_path, "a")
    (path / "metrics" / ".tmp-x").write_bytes(b"x")
    [leftover] = leftovers(tmp_path, time.time() + 2 * DAY)
    clear(leftover, tmp_path)
    clear(leftover, tmp_path)
    with pytest.raises(StepscopeError, match="is not below"):
        clear(leftover, tmp_path / "elsewhere")


def test_every_room_of_a_run_is_looked_into():
    """The rooms that are searched for leftovers are those of the layout."""
    assert {"metrics", "nodes", "tail", "events"} <= set(FOLDERS)


@pytest.mark.promise("S1-059", "S1-061")
def test_auto_cleanup_applies_the_limits_when_a_run_ends(tmp_path):
    """With `auto_cleanup` the watcher removes the oldest runs when a run ends, and never the run itself."""
    old = make_run(tmp_path, "old", days=3)
    tuning = {"auto_cleanup": True, "max_database_size_gb": 1e-9}
    with stepscope.init(project="q", dir=tmp_path, performance_tuning=tuning) as run:
        run.log(loss=1.0)
    until(lambda: not old.exists(), "the removal")
    until(lambda: not watchers(tmp_path), "the end of the watcher")
    assert stepscope.open(run.path).series("loss").value.tolist() == [1.0]


def test_without_auto_cleanup_nothing_goes(tmp_path):
    """Limits alone remove nothing when a run ends: that is asked for, or done by `stepscope gc`."""
    old = make_run(tmp_path, "old", days=3)
    with stepscope.init(project="q", dir=tmp_path, store={"max_runs": 1}) as run:
        run.log(loss=1.0)
    until(lambda: not watchers(tmp_path), "the end of the watcher")
    assert old.exists()
