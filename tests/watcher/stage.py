"""A watcher that is stepped by hand, over rings of this process, with a clock and a sealing that the test holds."""

from __future__ import annotations

from stepscope.core import ring
from stepscope.core.clock import boot_id
from stepscope.core.places import Places
from stepscope.store.layout import Writer, node_name
from stepscope.store.reader import Past
from stepscope.store.states import NodeState
from stepscope.watcher import loop
from stepscope.watcher.journal import Journal
from stepscope.watcher.loop import Watcher, WatcherPace
from tests.recorder.rig import Rig, identity_of
from tests.store.recorded import OwnStream, make_folder


class StageClock:
    """Both clocks, moved by the test."""

    def __init__(self):
        self.wall, self.monotonic = 1_700_000_000_000_000_000, 1_000_000_000_000

    def wall_ns(self):
        return self.wall

    def monotonic_ns(self):
        return self.monotonic

    def go_on(self, seconds):
        self.wall += round(seconds * 1e9)
        self.monotonic += round(seconds * 1e9)


class FakeSealing:
    """Remembers what it was asked to seal."""

    def __init__(self):
        self.asked, self.polls, self.busy = [], 0, False

    def add(self, writer, number):
        self.asked.append((writer.attempt, number))

    def poll(self, now, *, alone=False):
        self.polls += 1

    def idle(self):
        return not self.busy


class Stage:
    """A run, its watcher, and as many trainers as the test asks for."""

    def __init__(self, path, monkeypatch, **pace):
        self.folder = make_folder(path / "run")
        (path / "runtime").mkdir()
        self.places = Places(None, path / "runtime")
        self.clock, self.sealing = StageClock(), FakeSealing()
        self.journal = Journal(self.folder.path / "watcher.log")
        self.dead, self.trainers = set(), []
        stage = self

        class WatchedStream(OwnStream):
            def writer_alive(self):  # a lock of this very process would not show
                return self.path not in stage.dead

        monkeypatch.setattr(loop, "Stream", WatchedStream)
        self.watcher = self.new_watcher(**pace)

    def new_watcher(self, **pace):
        return Watcher(self.folder, self.places, self.clock, WatcherPace(**pace), self.sealing, self.journal)

    def trainer(self, rank=0, attempt=0, **more):
        """Return the rig of a new trainer of this run."""
        home = self.places.of_run(str(self.folder.path), self.places.disk)
        home.mkdir(exist_ok=True)
        identity = identity_of(
            self.folder.path.parent,
            rank,
            attempt,
            wall_ns=self.clock.wall,
            monotonic_ns=self.clock.monotonic,
            extra={"created": 1_700_000_000_000_000},
        )
        self.trainers.append(Rig(home, **{"ring_bytes": 1 << 20, "identity": identity, **more}))
        return self.trainers[-1]

    def end(self, rig, state=ring.STATE_FINISHED):
        rig.reader.set_word(ring.WORD_STATE, state)

    def tick(self, seconds=0.1, times=1):
        """Let time pass, and the watcher do what is due; return what the last tick said."""
        alive = True
        for _ in range(times):
            self.clock.go_on(seconds)
            alive = self.watcher.tick()
        return alive

    def status(self, rig):
        return rig.reader.words()[ring.WORD_STATUS]

    def node(self, attempt=0):
        writer = Writer(node_name(self.places.disk, boot_id()), attempt)
        return NodeState.load(self.folder.node_file(writer))

    def past(self):
        return Past(self.folder)

    def values(self, name="a", **filters):
        """Return the values of a metric that are in the run."""
        return self.past().series(name, **filters).value.tolist()
