"""SwanLab, offline: counted steps, a step of the script's own, nested dicts, text."""

from __future__ import annotations

from values import LOSSES, main


def write(folder):
    import swanlab

    swanlab.init(project="p", mode="offline", logdir=str(folder / "swanlog"), config={"lr": 0.1})
    for loss in LOSSES:
        swanlab.log({"loss": loss, "deep": {"x": loss}})
    swanlab.log({"late": 1.0}, step=20)
    swanlab.log({"next": 2.0, "note": swanlab.Text("hello")})
    swanlab.finish()


def read(folder):
    from swanlab.sdk.internal.core_python.store import DataStoreReader
    from swanlab.sdk.internal.core_python.sync import Record

    [path] = folder.glob("swanlog/*/*.swanlab")
    reader, found = DataStoreReader(), {}
    reader.open(path)
    while (data := reader.scan()) is not None:
        record = Record()
        record.ParseFromString(data)
        if record.HasField("scalar"):
            found.setdefault(record.scalar.key, []).append((record.scalar.step, record.scalar.value.number))
    return found


if __name__ == "__main__":
    main(write, read)
