"""The rules of catching, with small stand-ins for the trackers and for the run."""

from __future__ import annotations

import inspect
import math
import pickle
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

import stepscope
from stepscope.core.step_axes import axis_of, whole_step
from stepscope.integrations.catching import tensorboard, wandb
from stepscope.integrations.catching.arming import Catching
from stepscope.integrations.catching.caught import Caught
from stepscope.integrations.catching.following import CallFollower
from stepscope.integrations.catching.things import describe, flat, host_number
from stepscope.integrations.torch.patches import Patches
from stepscope.session import current


class FakeRun:
    """Keeps the rows and events that it is given."""

    is_launched, instrument = False, None

    def __init__(self):
        self.rows, self.events, self.histograms = [], [], []
        self._intake = SimpleNamespace(plain={float, int, bool})
        self._counting, self._index = True, 0

    def log(self, values=None, step=None, **more):
        """Record one row."""
        self.rows.append(({**(values or {}), **more}, step))
        self._index += step is None

    def own_event(self, **fields):
        self.events.append(fields)

    def histogram(self, name, values, step=None):
        self.histograms.append((name, list(values), step))


class Tensor:
    """A number on a device, which may not be read."""

    __torch_function__ = None
    dtype, device = "float32", SimpleNamespace(type="cuda")

    def numel(self):
        return 1

    def item(self):
        raise AssertionError("reading it would wait for the device")

    __float__ = item


@pytest.fixture
def run():
    return FakeRun()


@pytest.fixture
def config():
    return {}


@pytest.fixture
def caught(run, config):
    return Caught(run, config.update)


def test_a_value_of_two_trackers_is_recorded_once(run, caught):
    """The same number from another source is left out, from each further source once; a new value is not."""
    first, second, third = (caught.recorder(name) for name in "abc")
    for step in (1, 2):
        for record in (first, second, third):
            record({"loss": 0.5}, step)
    second({"loss": 0.5}, 3)
    assert run.rows == [({"loss": 0.5}, 1), ({"loss": 0.5}, 2), ({"loss": 0.5}, 3)]


def test_only_the_last_value_of_a_name_is_compared(run, caught):
    """A value that another source recorded before something else is no reason to leave one out."""
    first, second = caught.recorder("a"), caught.recorder("b")
    for record, value in ((first, 1.0), (second, 2.0), (second, 1.0), (first, 1.0)):
        record({"x": value}, 0)
    assert [row["x"] for row, _ in run.rows] == [1.0, 2.0, 1.0]


@pytest.mark.parametrize(("one", "other", "same"), [(math.nan, math.nan, True), (0.0, -0.0, False), (1, 1.0, True)])
def test_values_are_compared_to_the_bit(run, caught, one, other, same):
    """NaN is NaN, and zero is not minus zero: what counts is the recorded number."""
    caught.recorder("a")({"x": one}, 0)
    caught.recorder("b")({"x": other}, 0)
    assert len(run.rows) == 2 - same


def test_the_scripts_own_row_is_recorded_once_too(run, caught):
    """What was caught is left out of a row of the script's, and the other way round; such a row still counts."""
    log, record = caught.script_log(run.log), caught.recorder("a")
    log({"loss": 0.5}, more=1.0)
    record({"loss": 0.5}, 0)
    record({"lr": 0.1}, 1)
    log({"lr": 0.1})
    assert run.rows == [({"loss": 0.5, "more": 1.0}, None), ({"lr": 0.1}, 1)]
    assert run._index == 2


@pytest.mark.parametrize("values", [None, 7, {}, [("a", 1)]])
def test_odd_rows_of_the_script_go_on_unchanged(caught, values):
    """What is no dict is left to the run's own `log`."""
    seen = []
    caught.script_log(lambda *args: seen.append(args))(values, 3)
    assert seen == [(values, 3)]


def test_a_value_on_a_device_is_not_read(run, caught):
    """It goes to the run as it is, and is neither kept nor compared."""
    value, first, second = Tensor(), caught.recorder("a"), caught.recorder("b")
    first({"x": 1.0}, 0)
    second({"x": value, "y": 2.0}, 1)
    assert run.rows == [({"x": 1.0}, 0), ({"x": value}, 1), ({"y": 2.0}, 1)]
    assert sys.getrefcount(value) <= 4  # ours, the row's, the argument's


def test_a_problem_is_told_once_and_never_raised(caught, capsys):
    """Whatever goes wrong while a value is recorded, the tracker's call goes on."""
    caught.write = None
    record = caught.recorder("a")
    for _ in range(2):
        record({"x": 1.0}, 0)
    assert capsys.readouterr().err.count("cannot record what a is handed: TypeError") == 1


class FakeWandbRun:
    """W&B's run, as far as it is wrapped."""

    def __init__(self):
        self._local_step = 0
        self._config = SimpleNamespace(_as_dict=lambda: {"lr": 0.1, "_wandb": {}})

    def _log(self, data, step=None, commit=None):
        """Take a row."""
        if data == {"bad": 1}:
            raise ValueError("refused")
        if commit or (commit is None and step is None):
            self._local_step += 1
        return "theirs"

    def _define_metric(self, name, step_metric=None):
        return name

    def _finish(self):
        pass

    def _on_start(self):
        pass


@pytest.fixture
def patched(caught, monkeypatch):
    """Return the stand-in for W&B, wrapped, and what restores it."""
    patches = Patches()
    wandb.catch(SimpleNamespace(Run=FakeWandbRun), caught, patches)
    yield patches
    patches.restore()


def test_the_tracker_returns_and_raises_as_ever(run, patched):
    """Its results and its exceptions are the caller's; a value that it refused is recorded."""
    one = FakeWandbRun()
    assert one._log({"x": 1.0}) == "theirs"
    with pytest.raises(ValueError, match="refused"):
        one._log({"bad": 1})
    assert run.rows == [({"x": 1.0}, 0), ({"bad": 1}, 1)]


def test_a_wrapped_method_looks_like_its_original(patched):
    """Signature, name and documentation are the tracker's, its objects can be pickled, and all is restored."""
    assert list(inspect.signature(FakeWandbRun._log).parameters) == ["self", "data", "step", "commit"]
    assert (FakeWandbRun._log.__name__, FakeWandbRun._log.__doc__) == ("_log", "Take a row.")
    assert pickle.loads(pickle.dumps(FakeWandbRun._log)) is FakeWandbRun._log
    patched.restore()
    assert not hasattr(FakeWandbRun._log, "__wrapped__")


def test_uncommitted_values_wait_for_the_commit(run, patched):
    """`commit=False` adds to the row of the step; a later step, the end of W&B's run or the commit records it."""
    one = FakeWandbRun()
    one._log({"a": 1.0}, commit=False)
    assert run.rows == []
    one._log({"a": 2.0, "b": 3.0})
    one._log({"c": 4.0}, commit=False)
    one._finish()
    assert run.rows == [({"a": 2.0, "b": 3.0}, 0), ({"c": 4.0}, 1)]


def test_a_defined_axis_is_the_step(run, patched):
    """`define_metric` makes a metric the step of others; one that comes later in the same row is waited for."""
    one = FakeWandbRun()
    one._define_metric("val/*", step_metric="epoch")
    one._log({"val/a": 1.0, "epoch": 7, "loss": 0.5})
    one._log({"val/a": 2.0}, step=5)
    one._log({"epoch": 8}, step=5)
    one._log({"val/a": 3.0}, commit=True)
    steps = {name: [step for row, step in run.rows if name in row] for name in ("val/a", "loss", "epoch")}
    assert steps == {"val/a": [7, 8, 8], "loss": [0], "epoch": [0, 5]}


def test_the_configuration_is_kept_without_the_trackers_own(config, patched):
    """W&B's internal part of it is left out."""
    FakeWandbRun()._on_start()
    assert config == {"lr": 0.1}


class FakeWriter:
    """A SummaryWriter that writes nothing."""

    def __init__(self, folder):
        self.log_dir = folder

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        pass

    def add_image(self, tag, img_tensor, global_step=None):
        pass

    def close(self):
        pass


def test_two_open_writers_do_not_share_their_tags(run, caught):
    """The second one's values have its folder's name before the tag; after the first is closed a new one has none."""
    tensorboard.catch(SimpleNamespace(__name__="torch.x", SummaryWriter=FakeWriter), caught, Patches())
    train, val = FakeWriter("runs/train"), FakeWriter("runs/val/")
    for writer in (train, val, train):
        writer.add_scalar("loss", 0.5, 3)
    train.close()
    val.close()
    FakeWriter("runs/again").add_scalar("loss", scalar_value=0.25)
    assert run.rows == [({"loss": 0.5}, 3), ({"val/loss": 0.5}, 3), ({"loss": 0.5}, 3), ({"loss": 0.25}, 0)]


def test_calls_of_a_trackers_own_methods_are_not_followed_again(caught):
    """A method that calls another of the same tracker is one call of the script."""

    class Client:
        def outer(self, x):
            return self.inner(x)

        def inner(self, x):
            return x

    seen = []
    follower = CallFollower(caught, "a", Patches())
    follower.follow(Client, "outer", lambda given: seen.append(("outer", given["x"])))
    follower.follow(Client, "inner", lambda given: seen.append(("inner", given["x"])))
    assert (Client().outer(1), Client().inner(x=2)) == (1, 2)
    with pytest.raises(TypeError):
        Client().inner()
    assert seen == [("outer", 1), ("inner", 2)]


def test_a_tracker_without_the_method_that_logs_is_reported(caught, capsys):
    """A version whose method has another name is said once; its other methods may be missing."""
    catching = Catching.__new__(Catching)
    catching._run, catching._caught, catching._patches = SimpleNamespace(log=print), caught, Patches()
    catching._wrap(wandb.catch, SimpleNamespace(__name__="wandb.sdk.wandb_run", Run=type("Run", (), {})))
    told = capsys.readouterr().err
    assert "cannot record what wandb.sdk.wandb_run is handed" in told
    assert "this version has no Run._log" in told


class Image:
    """A picture of some tracker."""

    nbytes = 48


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hello", {"kind": "text", "size_bytes": 5}),
        (Image(), {"kind": "image", "size_bytes": 48}),
        ([Image(), Image()], {"kind": "image", "items": 2, "size_bytes": 96}),
        (object(), {"kind": "object"}),
    ],
)
def test_what_is_no_number_is_described(value, expected):
    """An event has the kind, how many there are, and the size where it is known."""
    assert describe(value) == expected


def test_arrays_and_numbers_of_numpy():
    """A scalar is a number, an array is none; both without holding on to the array."""
    np = pytest.importorskip("numpy")
    assert host_number(np.float32(0.5)) == 0.5
    assert type(host_number(np.ones(1))) is float
    assert host_number(np.ones(2)) is None
    assert describe(np.ones(2)) is None


tree = some.recursive(some.integers(), lambda below: some.dictionaries(some.text("ab", max_size=2), below, max_size=3))


@given(some.dictionaries(some.text("ab", max_size=2), tree))
def test_nested_values_keep_their_path(values):
    """Each number of a nested dict has one name, its keys joined."""

    def leaves(node, path=()):
        for key, value in node.items():
            yield from leaves(value, (*path, key)) if isinstance(value, dict) else [(".".join((*path, key)), value)]

    assert list(flat(values)) == list(leaves(values))


def test_axes_of_metrics():
    """A name of its own comes before a pattern, a longer pattern before a shorter one; a step is a whole number."""
    axes = {"*": "step", "val/*": "epoch", "val/x": "x"}
    assert [axis_of(name, axes) for name in ("val/x", "val/y", "y")] == ["x", "epoch", "step"]
    assert axis_of("y", {"z": "x"}) is None
    assert whole_step(31.0) == 31
    assert [whole_step(value) for value in (math.nan, math.inf, True, "1", None)] == [None] * 5


@pytest.mark.parametrize(
    ("setting", "first", "watched"), [(None, False, True), (True, True, True), (False, False, False)]
)
def test_the_setting_decides(setting, first, watched, patient_end):
    """Unset, a run catches after `watch`; true catches from the start, false never. The end restores everything."""
    settings = {} if setting is None else {"recorder__catch": setting}
    with stepscope.init(project="p", **settings) as run:
        assert (run.catching is not None) == first
        run.watch()
        assert (run.catching is not None) == watched
    assert run.catching is None
    assert "log" not in vars(run)
    assert not any(type(finder).__name__ == "AfterImport" for finder in sys.meta_path)


def test_a_config_of_the_script_is_kept_beside_a_run_of_its_own():
    """What a tracker is told goes into the configuration of the run, also without `stepscope run`."""
    with stepscope.init(project="p") as run:
        current.CURRENT.later({"lr": 0.1}, run=run)
        current.CURRENT._facts[run].settle(10)
    assert stepscope.open(run.path).meta["config"] == {"lr": 0.1}
