"""Read the binary messages as the page does."""

from __future__ import annotations

import json
import struct

import numpy as np

BUCKETS = ("step", "time", "mean", "min", "max", "last", "min_step", "max_step")


def messages(data):
    """Return head and payload of each message."""
    found, at = [], 0
    while at < len(data):
        assert data[at : at + 4] == b"SSB1"
        (size,) = struct.unpack_from("<I", data, at + 4)
        head = json.loads(data[at + 8 : at + 8 + size])
        start = at + 8 + size
        assert start % 8 == at % 8
        length = sum(curve["bytes"] for curve in head["curves"]) if "curves" in head else frame_bytes(head["n"])
        found.append((head, data[start : start + length]))
        at = start + length
    return found


def frame_bytes(rows):
    """Return how long the payload of a frame is."""
    return rows * (9 * 8 + 3 * 4) + 4 * (rows % 2)


def curves(data):
    """Return the curves of one message: each head with its columns."""
    ((head, payload),) = messages(data)
    found = []
    for curve in head["curves"]:
        names = ("step", "time", "value") if curve["kind"] == "points" else BUCKETS
        at, count = curve["at"], curve["n"]
        for name in names:
            curve[name] = np.frombuffer(payload, "<f8", count, at)
            at += 8 * count
        if curve["kind"] == "buckets":
            for name in ("count", "bad"):
                curve[name] = np.frombuffer(payload, "<u4", count, at)
                at += 4 * count
        assert at == curve["at"] + curve["bytes"]
        found.append(curve)
    return found


def rows(head, payload):
    """Return the columns of a frame."""
    count, at, found = head["n"], 0, {}
    for name in (*BUCKETS, "seq"):
        found[name] = np.frombuffer(payload, "<f8", count, at)
        at += 8 * count
    for name in ("curve", "count", "bad"):
        found[name] = np.frombuffer(payload, "<u4", count, at)
        at += 4 * count
    return found
