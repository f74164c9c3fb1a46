from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from stepscope.integrations.profiler import profile as torch_profile
from stepscope.integrations.profiler.profile import EpochProfiles, Profile, ProfileOptions
from stepscope.recorder.automatic import FollowedStep
from stepscope.session.opening import init
from tests.fakes import Clock
from tests.session.conftest import started  # noqa: F401 - a fixture

pytestmark = [pytest.mark.processes, pytest.mark.training]


class FakeProfiler:
    """torch's profiler as far as a profile uses it; fails where it is told to."""

    def __init__(self, log, fails, **options):
        self.log, self.fails, self.options = log, fails, options
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=list))

    def _do(self, what):
        self.log.append(what)
        if what in self.fails:
            raise RuntimeError(f"{what} failed")

    def start(self):
        self._do("start")

    def step(self):
        self._do("step")

    def stop(self):
        self._do("stop")

    def export_chrome_trace(self, path):
        self._do("export")
        with open(path, "w", encoding="ascii") as file:
            file.write('{"traceEvents": []}')


class FakeTorch:
    """The parts of torch that a profile asks for."""

    def __init__(self, fails=(), supported=("CPU",), busy=False):
        self.log, self.made = [], []
        self.profiler = SimpleNamespace(
            supported_activities=lambda: {f"ProfilerActivity.{name}" for name in supported},
            schedule=lambda **plan: plan,
            profile=self._profile,
        )
        self._fails = fails
        self.autograd = SimpleNamespace(_profiler_enabled=lambda: busy)

    def _profile(self, **options):
        self.made.append(FakeProfiler(self.log, self._fails, **options))
        return self.made[-1]

    @property
    def modules(self):
        return {"torch": self}


def profile_of(folder, torch, **options):
    said = []
    profile = Profile(folder, "trace", modules=torch.modules, show=said.append, **options)
    return profile, said


@pytest.fixture
def torch():
    return FakeTorch()


def test_schedule_is_wait_warm_up_steps(tmp_path, torch):
    """The profiler starts after the steps to wait, runs through warm-up and recorded steps, and then ends by itself."""
    profile, _ = profile_of(tmp_path, torch, wait=2, warmup=3, steps=4)
    assert profile.start()
    for _ in range(2):
        assert torch.log == []
        profile.step()
    assert torch.log == ["start"]
    for _ in range(7):
        assert profile.active
        profile.step()
    assert torch.log == ["start", *["step"] * 7, "stop", "export"]
    assert not profile.active
    assert profile.result.steps == 4
    assert torch.made[0].options["schedule"] == {"wait": 0, "warmup": 3, "active": 4, "repeat": 1}
    profile.step()
    assert len(torch.log) == 10


def test_seconds_are_those_of_the_recorded_steps(tmp_path, torch):
    """The time of a profile is that of its recorded steps, without warm-up."""
    clock = Clock()
    profile, _ = profile_of(tmp_path, torch, warmup=1, steps=2, clock=clock)
    profile.start()
    for seconds in (100, 3, 4):
        clock.now += seconds
        profile.step()
    assert profile.result.seconds == 7


@pytest.mark.promise("S3-029")
@pytest.mark.parametrize("fault", ["start", "step", "stop", "export"])
def test_errors_never_reach_the_training(tmp_path, fault):
    """Whatever the profiler raises ends the profile with the reason, and nothing else happens."""
    profile, said = profile_of(tmp_path, FakeTorch(fails=[fault]), warmup=0, steps=2)
    profile.start()
    for _ in range(5):
        profile.step()
    assert not profile.active
    assert f"{fault} failed" in (profile.result.error or " ".join(profile.result.notes))
    assert any(f"{fault} failed" in line for line in said)


@pytest.mark.promise("S3-029")
def test_trace_that_cannot_be_written_keeps_the_operations(tmp_path):
    """A trace that cannot be written is a note; the profile itself is a good one."""
    profile, _ = profile_of(tmp_path, FakeTorch(fails=["export"]), warmup=0, steps=1)
    profile.start()
    profile.step()
    assert (profile.result.error, profile.result.trace, profile.result.steps) == ("", None, 1)


def test_activities_without_hardware_are_passed_over(tmp_path, torch):
    """CUDA is ignored without a GPU; with none of what was asked for there is no profile, and a reason."""
    profile, _ = profile_of(tmp_path, torch, activities=["cpu", "cuda"])
    assert profile.start()
    assert torch.made[0].options["activities"] == ["ProfilerActivity.CPU"]
    only, _ = profile_of(tmp_path, torch, activities=["cuda"])
    assert not only.start()
    assert "cannot profile cuda here" in only.result.error


def test_both_activities_where_there_is_a_gpu(tmp_path):
    """Where torch supports CUDA both are profiled."""
    torch = FakeTorch(supported=("CPU", "CUDA"))
    profile_of(tmp_path, torch)[0].start()
    assert len(torch.made[0].options["activities"]) == 2


def test_another_profiler_is_left_alone(tmp_path):
    """A profiler of the user's own is not disturbed: ours says so and does not begin."""
    torch = FakeTorch(busy=True)
    profile, _ = profile_of(tmp_path, torch)
    assert not profile.start()
    assert "another profiler" in profile.result.error
    assert torch.log == []


def test_without_torch_there_is_a_reason(tmp_path):
    """Without torch there is no profile, and torch is not imported for it."""
    profile = Profile(tmp_path, modules={}, show=None)
    assert not profile.start()
    assert "torch is not loaded" in profile.result.error


def test_time_is_limited(tmp_path, torch):
    """A profile that lasts longer than its limit ends with the steps that it has, and says so."""
    clock = Clock()
    profile, said = profile_of(tmp_path, torch, warmup=0, steps=100, seconds=10.0, clock=clock)
    profile.start()
    for _ in range(4):
        clock.now += 4
        profile.step()
    assert profile.result.steps == 3
    assert profile.result.seconds == 12
    assert any("its limit" in line for line in said)


def test_stop_in_the_warm_up_says_so(tmp_path, torch):
    """A profile that ends before its first recorded step has no result but a reason."""
    profile, _ = profile_of(tmp_path, torch, warmup=5)
    profile.start()
    profile.step()
    assert "before the first recorded one" in profile.stop().error
    assert torch.log[-1] == "stop"


def test_stop_before_start_is_nothing(tmp_path, torch):
    """A profile that never began has no result."""
    assert profile_of(tmp_path, torch)[0].stop() is None


def test_other_threads_do_not_step(tmp_path, torch):
    """Steps of another thread are not counted, and its stop ends the profile without touching the profiler."""
    profile, _ = profile_of(tmp_path, torch, warmup=0, steps=1)
    profile.start()
    for call in (profile.step, profile.stop):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert torch.log == ["start"]
    assert "another thread" in profile.result.error


@pytest.mark.parametrize("options", [{"steps": 0}, {"warmup": -1}, {"top": -1}, {"bogus": 1}, {"activities": 3}])
def test_wrong_options_are_refused(tmp_path, options):
    """An option that there is not, or that makes no sense, is refused where it is written."""
    with pytest.raises((TypeError, ValueError)):
        Profile(tmp_path, **options)


def test_activities_in_any_spelling():
    """Activities may be one word, a list, and in capitals."""
    assert ProfileOptions(activities="CPU").checked().activities == ("cpu",)
    assert ProfileOptions(activities=["CPU", "cuda"]).checked().activities == ("cpu", "cuda")


def test_show_that_raises_is_told(tmp_path, torch, capsys):
    """A function of the caller's that raises does not reach the training."""
    profile = Profile(tmp_path, modules=torch.modules, show=lambda line: 1 / 0, warmup=0, steps=1)
    profile.start()
    profile.step()
    profile = Profile(tmp_path, modules={}, show=lambda line: 1 / 0)
    profile.start()
    assert "cannot report a profile: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.promise("S3-023")
def test_epochs_have_a_trace_each(tmp_path, torch):
    """The epochs asked for, and no others, are profiled into `chrome_trace_epoch_<n>.json`."""
    profiles = EpochProfiles(tmp_path, [1, 3], modules=torch.modules, show=None, warmup=1, steps=2)
    for epoch in range(4):
        profiles.begin(epoch)
        for _ in range(5):
            profiles.step()
        profiles.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "chrome_trace_epoch_1.json",
        "chrome_trace_epoch_3.json",
    ]
    assert {epoch: result.steps for epoch, result in profiles.results.items()} == {1: 2, 3: 2}


def test_wrong_options_of_epochs_are_refused_at_once(tmp_path):
    """Options of the epochs' profiles are looked at when they are given, not in the middle of a training."""
    with pytest.raises(TypeError):
        EpochProfiles(tmp_path, [1], bogus=1)


real = pytest.importorskip("torch", reason="the rest needs torch; pip install torch")


@pytest.fixture
def run(started):  # noqa: F811 - the fixture that was imported
    return init(project="profile")


@pytest.fixture(scope="module")
def training():
    model = real.nn.Sequential(
        real.nn.Conv2d(3, 8, 3), real.nn.ReLU(), real.nn.Flatten(), real.nn.Linear(8 * 14 * 14, 4)
    )
    optimizer = real.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = real.randn(4, 3, 16, 16), real.tensor([0, 1, 2, 3])

    def step():
        loss = real.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def train(run, training, steps):
    for _ in range(steps):
        with run.step():
            training()


@pytest.mark.promise("S3-022", "S3-023", "S3-024")
def test_run_is_profiled(run, training, capsys):
    """The next steps of a run are profiled: a Chrome trace in its folder, the slowest operations on the console."""
    profile = run.profile(steps=4, warmup=1, top=5, memory=True)
    train(run, training, 8)
    result = profile.result
    assert (result.steps, result.first_step, result.last_step, result.error) == (4, 2, 5, "")
    trace = json.loads((run.path / "profiles" / "rank0-attempt0-step2.json").read_text())
    assert sum(event.get("name") == "aten::conv2d" for event in trace["traceEvents"]) == 4
    said = capsys.readouterr().err
    assert "Profiler: Top 5 slowest operations:" in said
    assert f"1. {result.operations[0].name} ({result.operations[0].share:.1%} of time)" in said
    assert any(operation.memory_bytes for operation in result.operations) or result.operations[0].memory_bytes == 0


def test_operations_agree_with_torchs_own_summary(training):
    """Own time and calls of each operation are those of torch's `key_averages`."""
    with real.profiler.profile(activities=[real.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            training()
    found = torch_profile.summarise(torch_profile.read(profiler.profiler.kineto_results.events()))
    theirs = {}
    for item in profiler.key_averages():
        if not item.is_user_annotation:
            calls, seconds = theirs.get(item.key.removeprefix("aten::"), (0, 0.0))
            theirs[item.key.removeprefix("aten::")] = (calls + item.count, seconds + item.self_cpu_time_total / 1e6)
    assert {item.name: item.calls for item in found.operations} == {name: calls for name, (calls, _) in theirs.items()}
    for item in found.operations:
        assert item.seconds == pytest.approx(theirs[item.name][1], abs=2e-6)


def test_profile_is_an_event(run, training):
    """The result is recorded as an event, with the trace's place in the run's folder."""
    events = []
    run.own_event = lambda kind, **fields: events.append((kind, fields))
    run.profile(steps=2, warmup=1, show=None, labels={"request": "r1"})
    train(run, training, 5)
    (_, begun), (kind, facts) = events
    assert begun == {"request": "r1"}
    assert (kind, facts["steps"], facts["request"]) == ("profile", 2, "r1")
    assert facts["trace"] == "profiles/rank0-attempt0-step2.json"
    json.dumps(facts)


def test_steps_cost_nothing_more_afterwards(run, training):
    """A step is followed only while a profile is under way: before and after it is the plain object."""
    assert not isinstance(run.step(), FollowedStep)
    run.profile(steps=1, warmup=0, show=None)
    assert isinstance(run.step(), FollowedStep)
    train(run, training, 4)
    assert not isinstance(run.step(), FollowedStep)
    assert run.followers == ()


def test_block_ends_the_profile(run, training):
    """As a context manager a profile ends with the block, with the steps that it has."""
    with run.profile(steps=50, warmup=1, show=None) as profile:
        train(run, training, 5)
    assert profile.result.steps == 3
    assert "3 of 50 steps" in profile.result.notes[0]


def test_end_of_the_run_ends_the_profile(run, training):
    """A run that ends while it is profiled keeps what there is."""
    profile = run.profile(steps=50, warmup=1, show=None)
    waiting = run.profile(steps=1, show=None)
    train(run, training, 4)
    run.finish()
    assert profile.result.steps == 2
    assert "still under way" in waiting.result.error


def test_run_without_steps_says_so(run):
    """A profile of a run that ends without a further step says so."""
    profile = run.profile(show=None)
    run.finish()
    assert "ended before a step did" in profile.result.error


def test_wrong_options_do_not_raise_into_the_training(run, capsys):
    """`run.profile` refuses wrong options with a word, and returns a profile that has ended."""
    with run.profile(bogus=1) as profile:
        pass
    assert "bogus" in profile.result.error
    assert "bogus" in capsys.readouterr().err
    for wrong in ({"self": 1}, {"run": 1}, {"steps": "x"}, {"labels": "abc"}, {"folder": "/"}, {"activities": 3}):
        assert run.profile(**{"show": None, **wrong}).result.error


def test_run_that_records_nothing_is_not_profiled(monkeypatch):
    """A run that is off profiles nothing."""
    from stepscope.session.run import Run

    off = Run.off()
    with off.profile(steps=1) as profile, off.step():
        pass
    assert profile.result is None or profile.result.error


def test_traces_of_a_run_are_all_kept(run, training, tmp_path):
    """A trace of a run never replaces another one of the same step, as after going back to a checkpoint."""
    for _ in range(2):
        profile = run.profile(steps=1, warmup=0, show=None)
        with run.step(index=4):
            training()
        with run.step(index=5):
            training()
        assert profile.result.error == ""
    assert sorted(path.name for path in (run.path / "profiles").iterdir()) == [
        "rank0-attempt0-step5-2.json",
        "rank0-attempt0-step5.json",
    ]


def test_time_of_the_profiler_is_charged_to_its_phase(run, training):
    """Starting, stopping and writing are charged to the phase "profile", so that no step hides them."""
    charged = []
    phase = run.phase

    def spy(name):
        charged.append(name)
        return phase(name)

    run.phase = spy
    run.profile(steps=1, warmup=0, show=None)
    train(run, training, 3)
    assert set(charged) == {"profile"}
