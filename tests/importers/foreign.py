"""Small files of every format, made here byte by byte, without the vendors' packages."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from stepscope.core.tensorboard import masked_crc
from tests.importers import tracker_files

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared(name):
    """Return a path in the shared data; skip the test where it is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the real data is not here: ../shared/data/{name}")
    return path


def varint(value):
    """Return an integer as protocol buffers write it."""
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    """Return a field: an int as a varint, a float as a double, bytes and text with their length."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def single(number, value):
    """Return a field that is a float of four bytes."""
    return varint(number << 3 | 5) + struct.pack("<f", value)


def event(step, time, *values, session=None):
    """Return a TensorBoard event with these summary values."""
    message = field(1, time) + field(2, step)
    message += field(5, b"".join(field(1, value) for value in values)) if values else b""
    return message + (field(7, field(1, session)) if session is not None else b"")


def scalar(tag, value):
    """Return a summary value as TensorFlow 1 and PyTorch write it."""
    return field(1, tag) + single(2, value)


def tfrecord(data):
    """Return a record of an event file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def event_file(*events):
    """Return an event file, with the record that every one begins with."""
    return b"".join(map(tfrecord, (field(1, 1.0) + field(3, "brain.Event:2"), *events)))


def wandb_file(*records):
    """Return a W&B run file."""
    return level_log(b":W&B\xe1\xbe\x00", *records)


def swanlab_file(*records, version=2):
    """Return a SwanLab run file."""
    return level_log(b":SWL\xd6\xe1" + bytes([version]), *records)


def swanlab_scalar(key, step, time, value):
    """Return the record of one scalar; its time in seconds."""
    stamp = field(1, int(time)) + field(2, round(time % 1 * 1e9))
    return field(1, 1) + field(13, field(1, key) + field(2, step) + field(4, stamp) + field(5, field(1, value)))


def level_log(ident, *records):
    """Return a file in LevelDB's log format: records cut at blocks of 32 KiB."""
    out = bytearray(ident)
    for record in records:
        rest, first = record, True
        while first or rest:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = bytes([{(True, False): 1, (True, True): 2, (False, True): 3, (False, False): 4}[first, bool(rest)]])
            out += struct.pack("<IH", zlib.crc32(kind + piece), len(piece)) + kind + piece
            first = False
    return bytes(out)


def items(number, row):
    """Return the items of a message: key and JSON text."""
    return b"".join(field(number, field(1, key) + field(16, json.dumps(value))) for key, value in row.items())


def history(row, step=None):
    """Return the record of one call of `wandb.log`."""
    return field(1, 1) + field(2, items(1, row) + (field(2, field(1, step)) if step is not None else b""))


MEGATRON = (
    " [2024-11-05 10:00:00.500000] iteration       10/    1000 | consumed samples:           40 | elapsed time per "
    "iteration (ms): 5837.9 | learning rate: 1.500E-04 | global batch size:     4 | lm loss: 1.249319E+01 | "
    "loss scale: 8388608.0 | grad norm: 9.804 | number of skipped iterations:   0 |\n"
)
MLLOG = '{"time_ms": %d, "key": "%s", "value": %s, "metadata": {"step": %s, "samples_count": %d}}'
SMI = (
    "timestamp, index, name, utilization.gpu [%], memory.used [MiB], temperature.gpu, power.draw [W]\n"
    "2026/04/25 16:06:06.780, 0, NVIDIA A100, 50 %, 2 MiB, 27, 11.50 W\n"
    "2026/04/25 16:06:06.781, 1, NVIDIA A100, [N/A], 4 MiB, 30, [Not Supported]\n"
)


def mllog(time, key, value=None, step=0, samples=0):
    """Return a line of MLPerf's log."""
    return ":::MLLOG " + MLLOG % (time, key, json.dumps(value), json.dumps(step), samples) + "\n"


def titan(kind, value=None, name=None, step=1, rank=0, seq=0):
    """Return a line of torchtitan's structured log, as its handler writes it."""
    row = {"delta_ms": 0.1, "tid": 7, "rank": rank, "global_rank": rank, "source": "training", "host_name": "node1"}
    row |= {"pid": 1, "step": step, "time": 1700000000 + seq, "time_us": (1700000000 + seq) * 1000000, "seq_id": seq}
    row |= {"log_type": "event", "log_type_name": kind, "event_name": name, "caller": "train.py:1:f", "message": "m"}
    return json.dumps(row if value is None else row | {"value": value}) + "\n"


SAMPLES = {
    "stepscope": b"name,rank,attempt,seq,step,time,value\nloss,0,0,0,1,2023-11-14T22:13:20.000000Z,0.5\n",
    "training_logger": json.dumps({"experiment_name": "x", "raw_metrics": {"loss": [0.5, None, "inf"]}}).encode(),
    "tfevents": event_file(
        event(1, 10.0, scalar("loss", 0.5)), event(2, 11.0, scalar("loss", 0.25), scalar("lr", 1.0))
    ),
    "wandb": wandb_file(history({"loss": 0.5, "_step": 0, "_timestamp": 10.0}), history({"loss": 0.25, "_step": 1})),
    "swanlab": swanlab_file(
        field(10, field(1, "p") + field(4, "n") + field(6, "tag") + field(12, field(1, 10))),
        *(swanlab_scalar("loss", step, 10.5, 0.5) for step in range(3)),
        field(11, field(1, 1)),
    ),
    "trainer_state": json.dumps(
        {"global_step": 2, "log_history": [{"loss": 0.5, "step": 1, "epoch": 0.5}, {"eval_loss": 0.4, "step": 2}]}
    ).encode(),
    "megatron_golden": json.dumps(
        {"lm loss": {"start_step": 1, "end_step": 3, "step_interval": 1, "values": {"1": 2.5, "2": 2.25, "3": "nan"}}}
    ).encode(),
    "mllog": (
        mllog(1000, "global_batch_size", 4)
        + mllog(2000, "run_start")
        + mllog(3000, "tracked_stats", {"train_loss": 0.5}, 10, 40)
        + mllog(9000, "run_stop", None, 10, 40)
    ).encode(),
    "nvidia_smi": SMI.encode(),
    "torchtitan": (titan("step_start") + titan("metric_value", 0.5, "loss") + titan("step_end", 250.0)).encode(),
    "jsonl": b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": NaN}\n',
    "megatron": MEGATRON.encode(),
    "csv": b"epoch,step,train_loss,val_loss\n0,9,0.5,\n0,10,,0.4\n",
    "step_log": b"step:1/9 train_loss:2.5 train_time:79ms step_avg:79.2ms\nstep:2/9 train_loss:2.25 train_time:99ms\n",
    "console_log": b"== PHASE 1 (step 1) ==\n  Total Loss: 0.5\n== PHASE 1 (step 2) ==\n  Total Loss: 0.25\n",
    **tracker_files.FILES,
}
"""The smallest file of each format that says something."""
