"""The other metric loggers, each behind the same four calls; all local or offline, telemetry off."""
# ruff: noqa: D102 - the base class says what each call does

from __future__ import annotations

import importlib.util
import os
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = [f"metric_{index}" for index in range(10)]
Row = dict[str, float]


class Peer:
    """A logger. `log` records ten scalars, `read` counts the points of a name that its own reader gives back."""

    needs = ""
    """Modules that must be installed, space between them."""
    title = ""
    calls = 100
    """Calls of one measured block: about 10 ms."""

    def start(self, folder: Path) -> None:
        """Begin a run in an empty folder."""

    def log(self, step: int, row: Row) -> None:
        """Record one row of ten scalars."""

    def close(self) -> None:
        """End the run."""

    def read(self, folder: Path, key: str) -> int:
        """Return how many points of `key` can be read."""
        raise NotImplementedError

    @classmethod
    def missing(cls) -> bool:
        """Say whether it is not installed."""
        return any(importlib.util.find_spec(name) is None for name in cls.needs.split())


class Stepscope(Peer):
    """Ours."""

    needs, title, calls = "stepscope", "stepscope", 2000

    def start(self, folder: Path) -> None:
        import stepscope

        self.run = stepscope.init(project="p", dir=folder, run_id="r")

    def log(self, step: int, row: Row) -> None:
        self.run.log(row, step)

    def close(self) -> None:
        self.run.finish()

    def read(self, folder: Path, key: str) -> int:
        import stepscope

        return len(stepscope.open(folder / "p" / "r").series(key))


class TensorBoard(Peer):
    """The SummaryWriter of torch."""

    needs, title, calls = "torch tensorboard", "torch SummaryWriter", 50

    def start(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tb"))

    def log(self, step: int, row: Row) -> None:
        add_scalar = self.writer.add_scalar
        for key, value in row.items():
            add_scalar(key, value, step)

    def close(self) -> None:
        self.writer.close()

    def read(self, folder: Path, key: str) -> int:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "tb"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        return len(events.Scalars(key)) if key in events.Tags()["scalars"] else 0


class TensorBoardX(TensorBoard):
    """The SummaryWriter of tensorboardX."""

    needs, title = "tensorboardX tensorboard", "tensorboardX"

    def start(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tb"))


class WandB(Peer):
    """Weights & Biases, offline."""

    needs, title = "wandb", "W&B offline"

    def start(self, folder: Path) -> None:
        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
        import wandb

        self.run: Any = wandb.init(project="p", dir=str(folder))

    def log(self, step: int, row: Row) -> None:
        self.run.log(row, step=step)

    def close(self) -> None:
        self.run.finish()

    def read(self, folder: Path, key: str) -> int:
        from wandb.proto import wandb_internal_pb2

        [path] = folder.glob("wandb/*run-*/*.wandb")
        found = 0
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                found += sum(key in (item.key, *item.nested_key) for item in record.history.item)
        return found


class Trackio(Peer):
    """Trackio, local."""

    needs, title, calls = "trackio", "Trackio", 200

    def start(self, folder: Path) -> None:
        self._point_at(folder)
        import trackio

        self.trackio: Any = trackio
        trackio.init(project="p", name="r")

    def log(self, step: int, row: Row) -> None:
        self.trackio.log(row, step=step)

    def close(self) -> None:
        self.trackio.finish()

    def read(self, folder: Path, key: str) -> int:
        self._point_at(folder)
        from trackio.sqlite_storage import SQLiteStorage

        return sum(key in row for row in SQLiteStorage.get_logs("p", "r", max_points=None))

    @staticmethod
    def _point_at(folder: Path) -> None:
        os.environ.update(HF_HUB_OFFLINE="1", TRACKIO_DIR=str(folder / "trackio"))


class MLflow(Peer):
    """MLflow over sqlite, in its default synchronous way."""

    needs, title, calls = "mlflow", "MLflow", 4

    def start(self, folder: Path) -> None:
        os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
        import mlflow

        self.mlflow: Any = mlflow
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.start_run()

    def log(self, step: int, row: Row) -> None:
        self.mlflow.log_metrics(row, step=step)

    def close(self) -> None:
        self.mlflow.end_run()

    def read(self, folder: Path, key: str) -> int:
        import mlflow

        client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
        return len(client.get_metric_history(client.search_runs(["0"])[0].info.run_id, key))


PEERS: dict[str, type[Peer]] = {
    "stepscope": Stepscope,
    "tensorboard": TensorBoard,
    "tensorboardX": TensorBoardX,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}
OURS = "stepscope"


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file (LevelDB's log format after 7 bytes); a torn tail ends it.

    W&B ships no reader of it in Python any more (the last was in 0.22).
    """
    position, parts = 7, b""
    while position + 7 <= len(data):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        end = position + 7 + length
        if not 1 <= kind <= 4 or end > len(data):
            return
        parts = data[position + 7 : end] if kind in (1, 2) else parts + data[position + 7 : end]
        if kind in (1, 4):
            yield parts
        position = end


def rows(count: int, seed: int = 0) -> list[Row]:
    """Return rows of ten random floats."""
    import random

    draw = random.Random(seed).random
    return [{key: draw() for key in KEYS} for _ in range(count)]


def versions() -> str:
    """Return the versions of ours and of the peers that are installed."""
    from importlib import metadata

    from stepscope.version import __version__

    peers = [peer for name, peer in PEERS.items() if name != OURS and not peer.missing()]
    modules = sorted({module for peer in peers for module in peer.needs.split()})
    return ", ".join([f"stepscope {__version__}", *(f"{module} {metadata.version(module)}" for module in modules)])
