"""Runs made in this process: a recorder's ring drained into a folder, step by step, without a watcher."""

from __future__ import annotations

import json

import numpy as np

from stepscope.store import tail
from stepscope.store.decode import decode_tail
from stepscope.store.drain import Drain, OwnRows, Stream
from stepscope.store.layout import FORMAT_VERSION, RunFolder, Writer
from stepscope.store.points import Points, distinct, with_sorted_names
from stepscope.store.reader import Past
from stepscope.store.states import NodeState, RankState
from tests.recorder.rig import Rig, identity_of

PAIR = (1_700_000_000_000_000_000, 0)
WRITER = Writer("node", 0)


def list_sealed(directory):
    """Return the files of points of every complete unit, sorted by name."""
    return sorted(path for path in directory.glob("[!.]*.parquet") if not path.name.endswith(".blocks.parquet"))


def make_folder(path, run_id="run", **meta):
    folder = RunFolder(path)
    folder.make()
    facts = {"format": FORMAT_VERSION, "id": run_id, "project": "p", "name": "n", "created": 1_700_000_000_000_000}
    folder.run_file.write_text(json.dumps({**facts, **meta}))
    return folder


class OwnStream(Stream):
    """A stream that is closed once, at the latest when nobody needs it any more."""

    _schema_descriptor = _descriptor = -1
    _spill = _wake = None

    def close(self):
        super().close()
        self._descriptor = self._schema_descriptor = self._wake = -1

    __del__ = close


class Recorded:
    """A run with one rank: `log` as usual, `drain()`, then read."""

    def __init__(self, path, writer=WRITER, number=0, folder=None, rank=0, **rig):
        path.mkdir(exist_ok=True)
        self.folder = folder or make_folder(path / "run")
        identity = identity_of(path, rank, writer.attempt)
        self.rig = Rig(path, **{"ring_bytes": 1 << 20, "identity": identity, **rig})
        self.run = self.rig.run
        self.writer = writer
        self.stream = OwnStream(self.rig.path, number)
        self.drain_ = Drain(self.folder, writer, OwnRows(-1, 0))

    def close(self):
        """Close every file; once is enough."""
        self.stream.close()
        self.rig.close()
        file, self.drain_.file = self.drain_.file, None
        if file is not None:
            file.close()

    def __del__(self):
        if hasattr(self, "drain_"):
            self.close()

    def drain(self, pair=PAIR, limit=1 << 20):
        """Move everything to the tail; return the number of rows."""
        rows = 0
        while True:
            batch = self.drain_.once(self.stream, pair, limit)
            rows += batch.rows
            if not batch.rows:
                return rows

    def tail_bytes(self):
        return b"".join(span.path.read_bytes() for span in self.folder.all_tails())

    def end(self, state="finished", **more):
        """Write the node file of a rank that has ended."""
        ranks = {0: RankState(state=state, started=1, ended=2, **more)}
        NodeState(self.writer.node, self.writer.attempt, ended=True, ranks=ranks).save(self.folder)

    def past(self):
        return Past(self.folder)


def values_of(points: Points):
    """Return {(rank, attempt, seq, name): (step, bits of the value, ns)}."""
    bits = np.ascontiguousarray(points.value).view(np.int64)
    columns = (points.rank, points.attempt, points.seq, points.name, points.step, bits, points.ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(rank, att, seq, points.names[name]): (step, bit, ns) for rank, att, seq, name, step, bit, ns in rows}


def sorted_points(points: Points) -> Points:
    return distinct(with_sorted_names(points))


def frames_of(data):
    return [frame for frame in tail.decode(data) if not isinstance(frame, int)]


def decoded_values(data):
    return values_of(decode_tail(data).points)
