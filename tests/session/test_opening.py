from __future__ import annotations

import errno
import inspect
import json
import os
import stat

import pytest

import stepscope
from stepscope.core.places import HELD, SINKS_SUFFIX, find_places
from stepscope.recorder import mapping
from stepscope.session import opening
from stepscope.session.arguments import ARGUMENTS
from stepscope.session.opening import init
from tests.recorder.rig import identity_of, peek


def meta_of(run):
    return json.loads((run.path / "run.json").read_text())


def test_folder_of_a_run(started, tmp_path):
    """A run lies in root/project/id, with run.json, private to the user."""
    run = init(project="mnist", name="first try", config={"lr": 0.1}, dir=tmp_path)
    assert run.path == tmp_path / "mnist" / run.id
    assert (run.name, run.project, run.rank, run.attempt, run.recording) == ("first try", "mnist", 0, 0, True)
    meta = meta_of(run)
    assert (meta["format"], meta["id"], meta["project"], meta["name"]) == (1, run.id, "mnist", "first try")
    assert meta["config"] == {"lr": 0.1}
    assert stat.S_IMODE((run.path / "run.json").stat().st_mode) == 0o600


def test_watcher_is_started_with_its_pace(started, tmp_path):
    """The watcher gets the run's folder and what it needs of the configuration."""
    run = init(dir=tmp_path, watcher={"drain_interval": 0.02}, store={"seal_interval": 60})
    [(module, folder, settings, pid)] = started
    assert (module, folder, int(pid)) == ("stepscope.watcher.process", str(run.path), os.getpid())
    assert json.loads(settings)["watcher.drain_interval"] == 0.02
    assert json.loads(settings)["store.seal_interval"] == 60


def test_ring_says_whose_it_is(started, tmp_path):
    """The ring's header holds run, rank, attempt and when the run was made; the process knows that it writes it."""
    run = init(dir=tmp_path)
    path = run._mapping.path
    _, identity = peek(path)
    assert (identity.run_path, identity.rank, identity.attempt, identity.pid) == (str(run.path), 0, 0, os.getpid())
    spill = str(find_places().disk / path.parent.name / path.with_suffix(".spill").name)
    facts = {"created": meta_of(run)["created"], "visible": None, "at_prompt": False, "spill": spill}
    assert identity.extra == facts
    assert path in HELD
    run.finish()
    assert path not in HELD


@pytest.mark.parametrize("name", [123, ("a", 1), "x\ud800", "../../up", ""])
def test_odd_names(started, tmp_path, name):
    """A display name is any text, whatever is given, and the run can be read back."""
    run = init(name=name, dir=tmp_path)
    assert stepscope.open(run.path).name == (str(name) if name else run.id)


def test_default_project_and_root(started, monkeypatch, tmp_path):
    """Without a project the run is in "default"; the root is STEPSCOPE_DIR."""
    assert init().path.parent == tmp_path.parent / os.environ["STEPSCOPE_DIR"] / "default"


def test_secrets_are_not_kept(started, tmp_path):
    """Secrets in the configuration do not reach run.json."""
    run = init(dir=tmp_path, config={"api_key": "sk-abcdefghijklmnop1234567890", "use_cls_token": True})
    text = (run.path / "run.json").read_text()
    assert "sk-abcdefghijklmnop" not in text
    assert meta_of(run)["config"]["use_cls_token"] is True


def test_same_id_drawn_twice(started, monkeypatch, tmp_path):
    """Two runs that drew the same id in the same second are two runs, each under the id that its folder has."""
    monkeypatch.setattr(opening.time, "time", lambda: 1_700_000_000.0)
    true = os.urandom
    monkeypatch.setattr(opening.os, "urandom", lambda count: b"\x7c\xb4" if count == 2 else true(count))
    first, second, third = (init(project="p", dir=tmp_path) for _ in range(3))
    assert len({first.path, second.path, third.path}) == 3
    assert [run.id for run in (first, second)] == ["20231114-221320-7cb4", "20231114-221320-7cb47cb4"]
    assert all(run.id == run.path.name and run.attempt == 0 for run in (first, second, third))


def test_id_of_ones_own(started, tmp_path, capsys):
    """run_id= names the run; the same id again is a further attempt of it, with a warning unless resume=True."""
    first = init(run_id="mine", dir=tmp_path)
    first.finish()
    assert capsys.readouterr().err == ""
    second = init(run_id="mine", dir=tmp_path)
    assert "attempt 1 of it" in capsys.readouterr().err
    third = init(run_id="mine", resume=True, dir=tmp_path)
    assert capsys.readouterr().err == ""
    assert (first.attempt, second.attempt, third.attempt) == (0, 1, 2)
    assert first.path == second.path == third.path


def test_ranks_of_one_run(started, tmp_path, monkeypatch):
    """Ranks of one job come to one run, each with a ring of its own and attempt 0."""
    monkeypatch.setenv("STEPSCOPE_RUN_ID", "job")
    monkeypatch.setenv("WORLD_SIZE", "2")
    runs = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        runs.append(init(dir=tmp_path))
    assert [(run.id, run.rank, run.attempt) for run in runs] == [("job", 0, 0), ("job", 1, 0)]
    assert meta_of(runs[0])["world_size"] == 2


@pytest.mark.promise("S1-027")
def test_first_rank_only(started, tmp_path, monkeypatch, capsys):
    """track_rank_0_only leaves the other ranks inert, without a word and without a folder."""
    monkeypatch.setenv("STEPSCOPE_RUN_ID", "job")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = init(dir=tmp_path, recorder={"track_rank_0_only": True})
    assert not run.recording
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_switched_off(started, tmp_path):
    """recorder.enabled: false makes every call a no-op."""
    run = init(dir=tmp_path, recorder={"enabled": False})
    run.log({"a": 1})
    assert (run.recording, list(tmp_path.iterdir())) == (False, [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"project": "../up"}, "project"),
        ({"project": "a/b"}, "project"),
        ({"project": 7}, "project"),
        ({"run_id": "no/slash"}, "run_id"),
        ({"resume": True}, "resume"),
    ],
)
def test_misuse_is_said_once(started, tmp_path, capsys, arguments, said):
    """Misuse gives a run that records nothing, and one line that says what to do; nothing is raised."""
    run = init(dir=tmp_path, **arguments)
    run.log({"a": 1})
    lines = capsys.readouterr().err.splitlines()
    assert not run.recording
    assert len(lines) == 1
    assert lines[0].startswith("stepscope: cannot ")
    assert said in lines[0]
    assert started == []


def test_unwritable_root(started, tmp_path, capsys):
    """A root that is no folder gives a run that records nothing and says why."""
    (tmp_path / "file").touch()
    run = init(dir=tmp_path / "file")
    assert not run.recording
    assert "cannot record this run" in capsys.readouterr().err


def test_run_of_a_later_format(started, tmp_path, capsys):
    """A run of a later format is not written to."""
    folder = tmp_path / "default" / "new"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"format": 99, "id": "new"}')
    assert not init(run_id="new", resume=True, dir=tmp_path).recording
    assert "99" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def refuse_in(monkeypatch, name, number, *words):
    """Make the creation of rings fail where the path holds one of these words."""
    true = getattr(opening, name)

    def call(path, *arguments, **more):
        if any(word in str(path) for word in words):
            raise OSError(number, os.strerror(number))
        return true(path, *arguments, **more)

    monkeypatch.setattr(opening, name, call)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["create", "private_directory"])
def test_ring_on_disk_if_shared_memory_is_full(started, tmp_path, monkeypatch, open_files, name):
    """Where shared memory has no room the ring goes to disk, and no descriptor stays open."""
    refuse_in(monkeypatch, name, errno.ENOSPC, "/dev/shm")
    before = open_files()
    run = init(dir=tmp_path)
    assert run.recording
    assert run._mapping.path.is_relative_to(find_places().disk)
    run.finish()
    assert open_files() <= before


@pytest.mark.slow
def test_no_room_anywhere(started, tmp_path, monkeypatch, capsys, open_files):
    """Without room for a ring the run is not recorded, says so, and leaves neither file nor descriptor behind."""
    refuse_in(monkeypatch, "create", errno.ENOSPC, "/")
    before = open_files()
    assert not init(dir=tmp_path).recording
    assert "No space left" in capsys.readouterr().err
    assert open_files() <= before
    assert [path for root in find_places().roots() for path in root.rglob("*.schema")] == []


@pytest.mark.promise("S1-059")
def test_ring_on_disk_by_wish(started, tmp_path):
    """recorder.memory_map: false keeps the ring out of shared memory."""
    run = init(dir=tmp_path, recorder={"memory_map": False})
    assert run._mapping.path.is_relative_to(find_places().disk)


def test_size_of_the_ring(started, tmp_path):
    """The ring is as large as the configuration says."""
    run = init(dir=tmp_path, recorder={"ring_bytes": "1 MiB"})
    assert run._mapping.path.stat().st_size == 1 << 20


def test_first_process_of_a_container(started, tmp_path, monkeypatch, capsys):
    """A trainer that is PID 1 is told that nobody can say why it died."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    init(dir=tmp_path)
    assert "PID 1" in capsys.readouterr().err


def test_the_page_is_served_beside_the_training(started, tmp_path, monkeypatch):
    """dashboard=True, or web.enabled of the configuration, serves the page of the runs' folder, of rank 0 only."""
    served = []
    monkeypatch.setattr("stepscope.session.page.serve_beside", lambda *words: served.append(words))
    init(dir=tmp_path, dashboard=True)
    init(dir=tmp_path, web={"enabled": True, "port": 8081, "metrics": ["loss", "lr"]})
    init(dir=tmp_path)
    assert served == [(tmp_path, "127.0.0.1", 8080, "0.5", ""), (tmp_path, "127.0.0.1", 8081, "0.5", "loss,lr")]


def test_unreadable_configuration(started, tmp_path, capsys, monkeypatch):
    """A configuration that cannot be used is told, and the training goes on."""
    (tmp_path / "bad.yaml").write_text("recorder: [")
    run = init(dir=tmp_path, config_file=tmp_path / "bad.yaml")
    run.log({"a": 1})
    assert "bad.yaml" in capsys.readouterr().err


def test_errors_without_words(started, tmp_path, monkeypatch, capsys):
    """An error that says nothing is told by its type."""

    def refuse(*_, **__):
        raise RuntimeError

    monkeypatch.setattr(opening, "identify", refuse)
    assert not init(dir=tmp_path).recording
    assert "cannot record this run: RuntimeError" in capsys.readouterr().err


def test_ring_that_is_not_welcome(tmp_path):
    """A ring that turns out to be one too many in shared memory is not made there."""
    with pytest.raises(OSError, match="others took the space"):
        mapping.create(tmp_path / "x.ring", 1 << 18, identity_of(tmp_path), is_welcome=lambda: False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"id": 5}'])
def test_damaged_run_file(started, tmp_path, text):
    """A run whose run.json is damaged can go on all the same."""
    folder = tmp_path / "default" / "mine"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(text)
    assert init(run_id="mine", resume=True, dir=tmp_path).recording


@pytest.mark.parametrize(
    ("keyword", "remedy"),
    [
        ("tagz", "did you mean tags=?"),
        ("job_tipe", "put it into config={...}"),
        ("projct", "did you mean project=?"),
        ("store__max_run", "did you mean store__max_runs=?"),
        ("run_name", "write name=..."),
        ("qqqqqq", "it takes project, name, config"),
    ],
)
def test_a_keyword_that_names_nothing_is_told_with_the_right_one(started, tmp_path, capsys, keyword, remedy):
    """The run begins without it, and one line says what to write."""
    run = init(dir=tmp_path, **{keyword: 1, "store__max_age_days": 2})
    assert run.recording
    told = capsys.readouterr().err
    assert told.startswith(f"stepscope: cannot use init({keyword}=...): there is no such argument or setting; {remedy}")
    assert len(told.splitlines()) == 1


def test_a_sink_that_cannot_be_used_is_reported_at_the_start(started, tmp_path, capsys):
    """A mistake in a sink is said when the training starts; the run records, and the other sinks are left to send."""
    run = init(dir=tmp_path, exporters={"sinks": ["mlflow+ftp://here", "trackio://p"]})
    said = capsys.readouterr().err
    assert "mlflow+ftp" in said
    assert said.count("cannot use sink") == 1
    assert run.recording
    left = json.loads(run._mapping.path.with_suffix(SINKS_SUFFIX).read_text())
    assert left["exporters.sinks"] == ["mlflow+ftp://here", "trackio://p"]


def test_a_variable_reaches_the_run(started, tmp_path, monkeypatch):
    """What the environment sets holds for a run that sets nothing itself."""
    monkeypatch.setenv("STEPSCOPE_RECORDER__ENABLED", "no")
    assert not init(dir=tmp_path).recording


def test_arguments_are_those_of_init():
    """The words that a slip is compared with are those that init takes."""
    assert tuple(inspect.signature(init).parameters)[:-1] == ARGUMENTS


def test_labels_given_at_the_start_are_the_run_s(tmp_path):
    """Tags, notes and group given to `init` are read back, and found in the list of runs."""
    run = stepscope.init(dir=tmp_path, tags=["baseline", "lr sweep"], notes="with warm-up", group="sweep 7")
    run.finish()
    past = stepscope.open(run.path)
    assert (past.tags, past.notes, past.group) == (("baseline", "lr sweep"), "with warm-up", "sweep 7")
    (info,) = stepscope.runs(tmp_path)
    assert (info.tags, info.group) == (("baseline", "lr sweep"), "sweep 7")


def test_a_label_that_cannot_be_text_stops_nothing(tmp_path, capsys):
    """A tag whose text raises is reported; the run is recorded."""

    class Bad:
        def __str__(self):
            raise RuntimeError("no")

    run = stepscope.init(dir=tmp_path, tags=[Bad()])
    assert run.recording
    run.finish()
    assert "cannot label the run: RuntimeError: no" in capsys.readouterr().err
