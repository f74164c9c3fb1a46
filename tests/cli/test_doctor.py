from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.commands import checks
from stepscope.cli.commands.checks import BAD, NOTE, OFF, OK
from stepscope.cli.main import main
from stepscope.core.config import load
from stepscope.core.places import Places, find_places
from stepscope.exporters.sinks import table
from stepscope.exporters.sinks.sink import Sink, SinkDeniesError, SinkDownError
from tests.integration.processes import until

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def no_watcher_is_coming(monkeypatch):
    """Salvage young rings at once: the trainers of these tests start no watcher."""
    monkeypatch.setattr("stepscope.store.salvage.GRACE_SECONDS", 0.0)


@pytest.fixture
def doctor(capsys, tmp_path, monkeypatch):
    """Return a function that runs the command in an empty folder and returns its findings by topic."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code=0):
        assert main(["doctor", "--json", *arguments]) == code
        found: dict[str, list[tuple[str, str]]] = {}
        for finding in json.loads(capsys.readouterr().out)["findings"]:
            found.setdefault(finding["topic"], []).append((finding["state"], finding["text"] + finding["remedy"]))
        return found

    return call


def states(findings):
    return [finding.state for finding in findings]


def test_a_sound_machine(doctor):
    """Where recording works every topic is there, nothing is bad, and the exit code is 0."""
    found = doctor()
    topics = {"python", "platform", "packages", "torch", "configuration", "environment", "runs", "runtime"}
    assert topics | {"shared memory", "rings", "container", "launcher"} <= set(found)


def test_the_report_is_for_people(capsys, tmp_path, monkeypatch):
    """The report says the verdict first, fits the width, and holds a line for each topic."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "A run started here would be recorded" in lines[0]
    assert max(map(len, lines)) <= 80


def test_a_folder_that_cannot_be_written(doctor):
    """Runs that cannot be written are exit code 1, with a remedy."""
    [(state, text)] = doctor("--dir", "/proc/nowhere", code=1)["runs"]
    assert state == BAD
    assert "STEPSCOPE_DIR" in text


def test_a_folder_that_is_not_there_yet_is_fine_and_not_made(doctor, tmp_path):
    """A root that the first run will make is no problem, and looking does not make it."""
    [(state, text)] = doctor("--dir", str(tmp_path / "new" / "runs"))["runs"]
    assert (state, "made at the first run" in text) == (OK, True)
    assert not (tmp_path / "new").exists()


def test_a_bad_run_id_is_told(doctor, monkeypatch):
    """A run id of the environment that no folder can have is exit code 1."""
    monkeypatch.setenv("STEPSCOPE_RUN_ID", "a/b")
    assert doctor(code=1)["launcher"][0][0] == BAD


def test_the_launcher_is_understood(doctor, monkeypatch):
    """A process started under torchrun is told its run and rank."""
    for name, value in {"TORCHELASTIC_RUN_ID": "job", "RANK": "3", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    [(state, text)] = doctor()["launcher"]
    assert state == OK
    assert "rank 3 of 8 of run torchrun-" in text


def test_configuration_notices_and_errors(doctor, tmp_path):
    """Files that were found and unknown keys are reported; the exit code stays 0."""
    (tmp_path / "stepscope.yaml").write_text("recorder:\n  enabeld: true\nexporters:\n  csv:\n    enabled: true\n")
    found = doctor()["configuration"]
    assert [state for state, _ in found] == [OK, NOTE]
    assert "did you mean 'recorder.enabled'?" in found[1][1]


def test_recording_that_is_switched_off(doctor, tmp_path):
    """A configuration that switches recording off is exit code 1 and says where it stands."""
    (tmp_path / "stepscope.yaml").write_text("recorder:\n  enabled: false\n")
    [problem] = [text for state, text in doctor(code=1)["configuration"] if state == BAD]
    assert "stepscope.yaml' line 2" in problem


def test_secrets_of_the_environment_are_hidden(doctor, monkeypatch):
    """Our variables are listed without what is secret in them."""
    monkeypatch.setenv("STEPSCOPE_API_TOKEN", "hunter2-hunter2")
    assert "hunter2" not in doctor()["environment"][0][1]


def test_a_live_run_is_seen_and_left_alone(doctor, tmp_path):
    """A run that another process records is counted, and goes on undisturbed."""
    code = (
        "import stepscope, sys\nrun = stepscope.init(run_id='live')\nrun.log(a=1.0)\nprint(run.path, flush=True)\n"
        "sys.stdin.readline()\nrun.log(a=2.0)\nrun.finish()"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(stepscope.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        path = trainer.stdout.readline().strip()
        [(state, text), *_] = doctor()["rings"]
        trainer.communicate("go\n", timeout=300)
    assert (state, "runs 1, processes 1" in text) == (OK, True)
    past = until(lambda: stepscope.open(path).state == "finished" and stepscope.open(path), "the end of the run")
    assert past.series("a").value.tolist() == [1.0, 2.0]


def test_dead_rings_are_brought_home(doctor):
    """The rows of a process that was killed with its watcher are salvaged, and that is told."""
    code = (
        "import os, signal, stepscope, stepscope.session.watching as w\n"
        "w.Watch.begin = lambda *_: None\n"
        "run = stepscope.init(run_id='dead')\nrun.log(a=1.0)\nprint(run.path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(stepscope.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert "recovered the data of crashed processes: 1" in doctor()["rings"][0][1]
    assert stepscope.open(done.stdout.strip()).series("a").value.tolist() == [1.0]


@pytest.mark.parametrize(
    ("total", "free", "state"), [(2**34, 2**34, OK), (2**26, 2**26, OK), (2**25, 2**25, NOTE), (2**34, 2**24, NOTE)]
)
def test_the_place_of_the_ring_follows_the_rule(monkeypatch, tmp_path, total, free, state):
    """A ring goes to shared memory only as a small guest, and the report says why it does not."""

    class Space:
        f_frsize = 1
        f_blocks = total
        f_bavail = free

    monkeypatch.setattr("os.statvfs", lambda path: Space)
    (tmp_path / "shm").mkdir()
    places = Places(tmp_path / "shm", tmp_path)
    [found] = [finding for finding in checks.ring_place(places, 4 << 20) if finding.topic == "shared memory"]
    assert found.state == state


def test_no_shared_memory_is_no_problem(tmp_path):
    """Without shared memory, or without the wish for it, rings go to local disk."""
    assert states(checks.ring_place(Places(None, tmp_path), 1 << 20)) == [OK, OFF]
    (tmp_path / "shm").mkdir()
    assert states(checks.ring_place(Places(tmp_path / "shm", tmp_path), 1 << 20, wanted=False)) == [OK, OFF]


def test_pid_1_and_group_kills_are_known_problems(tmp_path):
    """A process that is PID 1, and a control group that is killed as one, are told with what follows from it."""
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.oom.group").write_text("1\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    assert states(checks.surroundings({}, str(tmp_path), pid=1)) == [OFF, NOTE, NOTE]
    assert states(checks.surroundings({"container": "lxc"}, str(tmp_path / "no"), pid=7)) == [OK]


def test_missing_packages_are_bad(monkeypatch):
    """A dependency that is not installed says what cannot be done without it; torch may be missing."""
    monkeypatch.setattr(checks, "_version", lambda name: None)
    assert states(checks.packages()) == [BAD, BAD, BAD, OFF]


def test_python_settings_that_slow_the_start():
    """PYTHONDONTWRITEBYTECODE makes every watcher compile its code, and that is told."""
    assert states(checks.python({"PYTHONDONTWRITEBYTECODE": "1"})) == [OK, NOTE]


@pytest.mark.parametrize(("module", "pure", "state"), [(object(), "", OK), (None, "", NOTE), (None, "1", OFF)])
def test_how_the_hot_path_runs(monkeypatch, module, pure, state):
    """Python instead of C is worth a word, unless somebody asked for it."""
    monkeypatch.setenv(checks.native.PURE, pure)
    monkeypatch.setattr(checks.native, "available", lambda: module)
    assert states(checks.hot_path()) == [state]


@pytest.mark.parametrize(("path", "kind"), [("/data/x", "nfs4"), ("/data2", "ext4"), ("/", "ext4")])
def test_file_systems_are_told_apart(tmp_path, path, kind):
    """The file system of a path is that of the nearest mount above it."""
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data nfs4 rw 0 0\n")
    assert checks.file_system(Path(path), str(mounts)) == kind


def test_locks_are_asked_for_and_not_taken(tmp_path):
    """Looking at a lock finds that of another process, and takes none."""
    path = tmp_path / "lock"
    path.write_bytes(b"xx")
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print(flush=True); input()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with path.open("r+b") as file:
            assert [checks.is_locked(file.fileno(), byte) for byte in (0, 1)] == [True, False]
        holder.communicate(b"\n", timeout=300)
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_a_damaged_ring_is_told():
    """A file that is no ring is reported, and nothing fails."""
    places = find_places()
    folder = places.of_run("/x", places.disk)
    folder.mkdir()
    (folder / "0.0.abc.ring").write_bytes(b"nonsense")
    assert states(checks.recording(places, 0, [])) == [OFF, NOTE]


def test_notices_are_not_told_twice():
    """An error of the configuration appears once."""
    assert states(checks.configuration(load(), [], None)) == [OFF]


class FakeSink(Sink):
    """A sink that does what the host of its address says."""

    never = threading.Event()

    def probe(self):
        """Answer, fail, or hang."""
        host = self.address.target(self.environ).hostname
        if host == "hangs":
            self.never.wait(30)
        if host == "down":
            raise SinkDownError("the connection was refused")
        if host == "denies":
            raise SinkDeniesError("the server answered 401")
        if host == "broken":
            raise RuntimeError("hunter2 was wrong")
        return f"Fake at {host}"


@pytest.fixture
def sinks(monkeypatch):
    """Return a function that checks sinks of these addresses, all of them fakes."""
    monkeypatch.setattr(FakeSink, "never", threading.Event())
    monkeypatch.setattr("stepscope.exporters.sinks.table.kind_of", lambda _: FakeSink)

    def check(*given, environ=None, seconds=20.0):
        config = load(settings={"exporters.sinks": list(given)})
        return [(one.state, f"{one.text} -> {one.remedy}") for one in checks.sinks(config, environ or {}, seconds)]

    yield check
    FakeSink.never.set()


def test_no_sinks_are_no_topic(sinks, doctor):
    """Without sinks in the configuration the report has no word about them."""
    assert sinks() == []
    assert "sinks" not in doctor()


def test_sinks_that_answer_and_do_not(sinks):
    """Each sink says what it is, or why it takes nothing and what to do; none of it keeps a run from being recorded."""
    found = sinks(
        "mlflow+http://fine:5000",
        "otlp+http://down:4318",
        {"url": "wandb://denies", "name": "team"},
        "trackio://broken",
    )
    assert found[0] == (OK, "mlflow: Fake at fine -> ")
    assert found[1][0] == found[2][0] == found[3][0] == NOTE
    assert found[1][1].startswith("otlp: the connection was refused -> start it")
    assert found[2][1].startswith("team: the server answered 401 -> check its address, its token")
    assert "rows wait in the run" in found[1][1]
    assert "hunter2" not in found[3][1]


def test_a_sink_that_hangs_is_told(sinks):
    """A probe that does not return is reported in time, and the others are asked all the same."""
    found = sinks("mlflow+http://hangs:5000", "otlp+http://fine:4318", seconds=1.0)
    assert found[0][0] == NOTE
    assert "mlflow: it does not answer within 1 s" in found[0][1]
    assert found[1] == (OK, "otlp: Fake at fine -> ")


def test_problems_of_sinks_have_a_remedy_and_no_secret(sinks):
    """What is wrong with an address is said without the address's password or token."""
    found = sinks(
        "mlflow+http://me:hunter2@fine:port",
        "mlflow+http://me:hunter2#x@fine:5000",
        "nothing://me:hunter2@fine",
        "mlflow+http://me:${NO_SUCH_PASSWORD}@fine:5000",
        {"url": "otlp+http://me:hunter2@fine:4318", "colour": "red"},
    )
    assert [state for state, _ in found] == [NOTE] * 5
    assert all(" -> " in text and not text.endswith("-> ") for _, text in found)
    assert "hunter" not in str(found)
    assert "NO_SUCH_PASSWORD is not set" in str(found)


def test_the_command_checks_the_sinks_of_the_configuration(doctor, tmp_path, monkeypatch):
    """Sinks in a file are asked, and one that is down does not change the exit code."""
    monkeypatch.setattr(table, "kind_of", lambda _: FakeSink)
    (tmp_path / "stepscope.yaml").write_text("exporters:\n  sinks: ['mlflow+http://me:hunter2@down:5000']\n")
    found = doctor()
    assert [state for state, _ in found["sinks"]] == [NOTE]
    assert "hunter2" not in str(found)
