"""Who owns what: pid namespaces, two writers of one id, resumed runs and files of a version that we do not know."""

from __future__ import annotations

import json
import os
import shutil
import struct

import pytest

import stepscope
from stepscope.core import ring
from stepscope.core.errors import StepscopeError
from stepscope.core.places import find_places, shared_root
from stepscope.store import tail
from stepscope.store.layout import FORMAT_VERSION
from stepscope.store.salvage import salvage
from tests.faults import spaces
from tests.integration.processes import kill, until, watchers

LIVE = """
    import os, sys, time
    import stepscope, stepscope.session.opening as opening
    if sys.argv[1] == "unwatched":
        opening.Watch = type("NoWatch", (opening.Watch,), {"begin": lambda *_: None})
    run = stepscope.init(project="owners")
    run.log({"x": 0})
    print(run.path, os.getpid(), flush=True)
    sys.stdin.readline()
    run.log({"x": 1})
    run.finish()
"""
LOOK = """
    import json, sys
    import stepscope
    from stepscope.core.places import find_places
    past = stepscope.open(sys.argv[1])
    print(json.dumps([past.state, len(find_places().rings())]))
"""


@pytest.fixture(autouse=True)
def no_watcher_is_coming(monkeypatch):
    """Salvage young rings at once: the trainers of these tests start no watcher."""
    monkeypatch.setattr("stepscope.store.salvage.GRACE_SECONDS", 0.0)


def start_live(bench, prefix=(), watched="unwatched"):
    """Return a trainer that holds a ring with one row, and its run's path."""
    trainer = bench.start(LIVE, watched, stdin=-1, prefix=prefix)
    return trainer, trainer.line().split()[0]


def end_live(trainer):
    """Let the trainer end."""
    trainer.process.stdin.write("go\n")
    trainer.process.stdin.flush()
    assert trainer.wait() == 0, trainer.err


@pytest.mark.parametrize("inside", ["the trainer", "the reader"])
def test_a_live_ring_of_another_pid_namespace_is_not_salvaged(bench, inside):
    """Locks, not pids, tell that the writer lives: a reader in another pid namespace leaves its ring alone."""
    unshared = spaces.unshared(spaces.PIDS)
    trainer, path = start_live(bench, unshared if inside == "the trainer" else ())
    reader = bench.start(LOOK, path, prefix=unshared if inside == "the reader" else (), name="look.py")
    assert reader.facts()[1] == 1
    assert len(find_places().rings()) == 1
    end_live(trainer)
    past = stepscope.open(path)
    assert past.series("x").value.tolist() == [0.0, 1.0]
    assert past.state == "finished"


def test_a_dead_ring_of_another_pid_namespace_is_salvaged(bench):
    """When the namespace is killed as a whole, with trainer and watcher, the next reader brings the rows home."""
    trainer, path = start_live(bench, spaces.unshared(spaces.PIDS), "watched")
    bench.watcher()
    kill(trainer.pid)
    until(lambda: not watchers(path), "the end of the namespace")
    past = stepscope.open(path)
    assert (past.state, past.series("x").value.tolist()) == ("killed", [0.0])
    assert find_places().rings() == []


def test_a_recycled_pid_is_not_taken_for_the_trainer(bench):
    """A ring whose recorded pid belongs to a live process that is not its writer is salvaged."""
    trainer, path = start_live(bench)
    trainer.process.kill()
    trainer.process.wait()
    ring_path = find_places().rings()[0]
    with ring_path.open("r+b") as file:
        file.seek(ring.IDENTITY_OFFSET)
        identity = ring.RingIdentity.decode(file.read(ring.HEADER_BYTES - ring.IDENTITY_OFFSET))
        file.seek(ring.IDENTITY_OFFSET)
        file.write(ring.RingIdentity(**{**identity._asdict(), "pid": os.getpid()}).encode())
    assert stepscope.open(path).state == "killed"


def test_a_dead_ring_is_found_however_the_path_is_spelt(bench, monkeypatch):
    """Opened by a relative path or through a link, a killed run is as whole as by the path it was recorded under."""
    for way in ("relative", "linked"):
        trainer, path = start_live(bench)
        trainer.process.kill()
        trainer.process.wait()
        link = bench.folder / f"link-{way}"
        link.symlink_to(os.path.dirname(path))
        monkeypatch.chdir(path)
        spelt = os.path.join("..", os.path.basename(path)) if way == "relative" else link / os.path.basename(path)
        past = stepscope.open(spelt)
        assert (past.state, past.series("x").value.tolist()) == ("killed", [0.0])


def test_a_runtime_folder_may_be_relative(bench):
    """Trainer and watcher find each other below a folder that is named relative to the trainer's directory."""
    trainer = bench.run(
        """
        import stepscope
        with stepscope.init(project="owners") as run:
            run.log({"x": 1.0})
        print(run.path)
    """,
        environ={"STEPSCOPE_RUNTIME_DIR": "below/here"},
    )
    past = stepscope.open(trainer.out.strip())
    until(lambda: past.state == "finished", "the end seen by the watcher")
    bench.quiet()
    shutil.rmtree(shared_root(str(bench.folder / "below/here")))
    assert past.series("x").value.tolist() == [1.0]


def test_a_trainer_that_reads_its_own_run_stays_its_owner(bench):
    """Opening and listing runs inside the trainer does not give up its lock: others still see it alive."""
    code = LIVE.replace(
        "sys.stdin.readline()",
        "stepscope.open(run.path); stepscope.runs(); print('read', flush=True); sys.stdin.readline()",
    )
    trainer = bench.start(code, "unwatched", stdin=-1)
    path = trainer.line().split()[0]
    assert trainer.line() == "read"
    end = bench.start(LOOK, path, name="look.py").facts()
    assert end[1] == 1
    end_live(trainer)
    assert stepscope.open(path).series("x").value.tolist() == [0.0, 1.0]


WRITER = """
    import json, sys
    import stepscope
    resume = len(sys.argv) > 2
    run = stepscope.init(project="two", run_id="same", resume=resume)
    print(run.attempt, flush=True)
    sys.stdin.readline()
    for step in range(500):
        run.log({"x": float(sys.argv[1])}, step=step)
    run.finish()
    print(run.path)
"""


def test_two_live_writers_of_one_id_are_told_apart(bench):
    """The second becomes attempt 1 with a warning; the rows of both are there, none under the other's attempt."""
    trainers = []
    for number in (10, 20):
        trainers.append(bench.start(WRITER, number, stdin=-1, name=f"writer{number}.py"))
        assert trainers[-1].line() == str(len(trainers) - 1)
    for trainer in trainers:
        trainer.process.stdin.write("go\n")
        trainer.process.stdin.flush()
    assert [trainer.wait() for trainer in trainers] == [0, 0]
    past = stepscope.open(trainers[0].out.strip())
    until(lambda: past.state == "finished" and past.attempts == [0, 1], "the end")
    for attempt, value in ((0, 10.0), (1, 20.0)):
        assert past.series("x", attempt=attempt).value.tolist() == [value] * 500
    assert trainers[0].err == ""
    assert len(trainers[1].complaints()) == 1
    assert "attempt 1" in trainers[1].err
    assert past.problems() == []


def test_resume_continues_a_run_as_a_new_attempt(bench):
    """resume=True goes on without a warning, steps may repeat, and both attempts can be read alone or together."""
    for number, resume in ((1, ()), (2, ("resume",))):
        trainer = bench.start(WRITER, number, *resume, stdin=-1)
        trainer.line()
        trainer.process.stdin.write("go\n")
        assert trainer.wait() == 0
        assert trainer.err == ""
    past = stepscope.open(trainer.out.strip())
    until(lambda: past.attempts == [0, 1] and past.state == "finished", "the end")
    assert len(past.series("x")) == 1000
    assert past.series("x", attempt=1).step.tolist() == list(range(500))
    assert past.series("x").value.tolist() == [1.0] * 500 + [2.0] * 500


def test_resuming_nothing_says_how(bench):
    """resume=True without an id is a no-op that names the remedy once."""
    trainer = bench.run("""
        import stepscope
        run = stepscope.init(project="two", resume=True)
        run.log({"x": 1})
        run.finish()
    """)
    assert trainer.process.returncode == 0
    assert len(trainer.complaints()) == 1
    assert "run_id=" in trainer.err


def test_a_ring_of_a_newer_version_is_left_alone(bench):
    """Neither watcher nor reader touches it, a message says so, and the watcher of the run still ends."""
    trainer, path = start_live(bench)
    trainer.process.kill()
    trainer.process.wait()
    ring_path = find_places().rings()[0]
    with ring_path.open("r+b") as file:
        file.seek(ring.WORD_VERSION * 8)
        file.write(struct.pack("<Q", ring.VERSION + 1))
    before, notes = ring_path.read_bytes(), []
    salvage(find_places(), note=notes.append)
    stepscope.open(path)
    assert ring_path.read_bytes() == before
    assert "version" in notes[0]
    os.utime(ring_path, (0, 0))
    other = bench.run(
        LIVE.replace('project="owners"', f'project="owners", run_id={os.path.basename(path)!r}'), "watched"
    )
    assert other.process.returncode == 0
    bench.quiet()


def test_an_old_ring_of_a_newer_version_is_kept_while_its_writer_lives(bench):
    """Age alone is no reason to delete a ring that we cannot read: somebody may hold it."""
    trainer, _ = start_live(bench)
    ring_path = find_places().rings()[0]
    with ring_path.open("r+b") as file:
        file.seek(ring.WORD_VERSION * 8)
        file.write(struct.pack("<Q", ring.VERSION + 1))
    os.utime(ring_path, (0, 0))
    salvage(find_places())
    assert ring_path.exists()
    trainer.process.kill()
    trainer.process.wait()
    os.utime(ring_path, (0, 0))
    salvage(find_places())
    assert not ring_path.exists()


def test_a_run_of_a_newer_format_is_neither_read_nor_continued(bench):
    """The reader refuses it with the remedy, and a trainer that would continue it changes nothing."""
    with stepscope.init(project="two", run_id="same") as run:
        run.log(x=1.0)
    bench.quiet()
    meta = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**meta, "format": FORMAT_VERSION + 1}))
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    with pytest.raises(StepscopeError, match="newer than ours; upgrade stepscope"):
        stepscope.open(run.path)
    assert stepscope.runs()[0].state == "broken"
    trainer = bench.start(WRITER, 1, "resume", stdin=-1)
    assert trainer.line() == "0"
    trainer.process.stdin.write("go\n")
    assert trainer.wait() == 0
    assert len(trainer.complaints()) == 1
    assert "upgrade stepscope" in trainer.err
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_frames_of_a_newer_version_in_a_tail_are_passed_over(bench):
    """Unknown frames cost only themselves, and it is said that something was passed over."""
    trainer, path = start_live(bench)
    trainer.process.kill()
    trainer.process.wait()
    past = stepscope.open(path)
    file = next((past.path / "tail").iterdir())
    strange = tail.encode(99, 0, b"from the future ")
    file.write_bytes(strange + file.read_bytes() + strange.replace(b"SSF1", b"SSF9"))
    assert past.series("x").value.tolist() == [0.0]
    assert past.problems()
