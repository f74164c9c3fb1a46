"""TensorBoard event files: records with checksums that contain protocol buffers with scalars."""

from __future__ import annotations

import os
import struct
from collections import Counter, defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.core.tensorboard import EXACT_FIELD, masked_crc
from stepscope.importers.binary.event_columns import add_scalars, checked
from stepscope.importers.binary.gathered_points import GatheredPoints
from stepscope.importers.binary.wire import Field, fields, varint
from stepscope.importers.imported import Imported, joined
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


MOST_RECORD = 64 * 2**20
"""Maximum bytes of a valid record; images and graphs are smaller."""
CHECKED_BYTES = 64 * 1024
"""Maximum bytes of a record whose content is checked: records with scalars are small, and the checksum is slow in
Python."""
PIECE = 4 * 2**20
"""Bytes that are read, and decoded, at once."""
LENGTH = struct.Struct("<QI")
CRC = struct.Struct("<I")
STARTED = 1
"""Session log status: the run restarted."""
REALS = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8"}
"""Numeric tensor types, with their numpy names."""
BFLOAT16 = 14
TENSOR_LISTS = {5: "<f4", 6: "<f8"}
"""Tensor fields that list values as fixed-width numbers."""
TENSOR_VARINTS = {7, 10}
HALF_BITS = 13
"""Tensor field that lists 16-bit numbers as integers."""


class SummaryEvent(NamedTuple):
    """The content of one record."""

    time: float
    step: int
    scalars: list[tuple[str, float]]
    """Tags and values."""
    started: bool
    """Whether the run restarted here."""
    facts: dict[str, Any]
    others: list[str]
    """Tags of values that are not numbers: images, histograms, texts."""


def recognises(head: FileHead) -> bool:
    """Return whether a file starts with the length of a record and its checksum."""
    if len(head.data) < LENGTH.size:
        return False
    return masked_crc(head.data[:8]) == int(CRC.unpack_from(head.data, 8)[0])


def fill(path: str, run: RunBuilder) -> None:
    """Read the scalars of one file, up to the first damaged length."""
    attempt = 0
    for data, starts in _records(path, run.note):
        attempt = _add_records(data, starts, run, attempt)


def _records(path: str, note: Callable[[str], None]) -> Iterator[tuple[bytes, list[int]]]:
    """Yield whole records as they come: bytes, and where in them the content of each record starts."""
    buffer = bytearray()
    wanted = LENGTH.size
    for piece in chunks(path, note, PIECE):
        buffer += piece
        if len(buffer) < wanted:
            continue
        data, at, starts, size = bytes(buffer), 0, [], 0
        wanted = LENGTH.size
        while len(data) - at >= wanted:
            size = _content_size(data[at : at + LENGTH.size])
            wanted = LENGTH.size + size + CRC.size
            if size < 0 or len(data) - at < wanted:
                break
            starts.append(at + LENGTH.size)
            at += wanted
            wanted = LENGTH.size
        yield data[:at], starts
        if size < 0:
            note("a record's length is damaged: what follows is not read")
            return
        del buffer[:at]
    if buffer:
        note("the last record is cut: the run was being written or was killed")


@lru_cache(maxsize=4096)
def _content_size(head: bytes) -> int:
    """Return the length that stands before a record, -1 if it is damaged; most records of a file share a few."""
    size, crc = LENGTH.unpack(head)
    return int(size) if masked_crc(head[:8]) == crc and size <= MOST_RECORD else -1


def _add_records(data: bytes, starts: list[int], run: RunBuilder, attempt: int) -> int:
    """Add the points of whole records, given the attempt before them; return the one after them."""
    at = np.array(starts, np.int64)
    sizes = np.diff(at, append=len(data) + LENGTH.size) - (LENGTH.size + CRC.size)
    points, is_right, is_left = GatheredPoints(), np.zeros(len(at), bool), np.ones(len(at), bool)
    for rows, mine in checked(data, at, sizes):
        is_right[mine] = True
        is_left[mine[add_scalars(points, rows, at[mine])]] = False
    restarts = []
    for index in np.flatnonzero(is_left).tolist():
        start, end = starts[index], starts[index] + int(sizes[index])
        content = data[start:end]
        is_checked = is_right[index] or len(content) > CHECKED_BYTES
        if not is_checked and masked_crc(content) != CRC.unpack_from(data, end)[0]:
            run.note("records with a wrong checksum, left out")
            continue
        try:
            event = decode(content)
        except ValueError:
            run.note("records that are no events, left out")
            continue
        if event.started:
            restarts.append(start)
        run.facts |= event.facts
        for offset, (tag, value) in enumerate(event.scalars):  # a record has more bytes than scalars
            points.add(start + offset, tag, event.step, event.time, value)
        for tag in event.others:
            run.leave_out("images, histograms and texts", tag)
    return points.move_to(run, restarts, attempt)


def decode(record: bytes) -> SummaryEvent:
    """Return the content of a record; raises ValueError if it is not an event."""
    time, step, started = 0.0, 0, False
    scalars: list[tuple[str, float]] = []
    facts: dict[str, Any] = {}
    others: list[str] = []
    for field in fields(record):
        if field.number == 1:
            time = field.real
        elif field.number == 2:
            step = field.signed
        elif field.number == 5:
            for value in fields(field.data):
                if value.number == 1:
                    _add_value(value.data, scalars, facts, others)
        elif field.number == 7:
            started = any(part.number == 1 and part.integer == STARTED for part in fields(field.data))
    return SummaryEvent(time, step, scalars, started, facts, others)


def _add_value(message: bytes, scalars: list[tuple[str, float]], facts: dict[str, Any], others: list[str]) -> None:
    """Add one value of a summary: a number, a tensor with a single number, hyperparameters, or just its tag."""
    tag, number = "", None
    for field in fields(message):
        if field.number == 1:
            tag = field.text
        elif field.number in {2, EXACT_FIELD}:
            number = field.real
        elif field.number == 8:
            number = tensor_scalar(field.data)
        elif field.number == 9 and tag == "_hparams_/session_start_info":
            facts["hparams"] = hyperparameters(field.data)
    if tag and number is not None:
        scalars.append((tag, number))
    elif tag and not tag.startswith("_hparams_/"):
        others.append(tag)


def tensor_scalar(message: bytes) -> float | None:
    """Return the number in a scalar tensor, or None if it is a text or has a shape."""
    kind, content, scalar = 0, b"", None
    for field in fields(message):
        if field.number == 1:
            kind = field.integer
        elif field.number == 2 and field.data:
            return None
        elif field.number == 4:
            content = field.data
        elif field.number in TENSOR_LISTS and len(field.data) == np.dtype(TENSOR_LISTS[field.number]).itemsize:
            scalar = field.real
        elif field.number in TENSOR_VARINTS:
            scalar = float(_listed(field))
        elif field.number == HALF_BITS:
            content = (_listed(field) & 0xFFFF).to_bytes(2, "little")
    if kind == BFLOAT16 and len(content) == 2:
        return float(np.frombuffer(b"\0\0" + content, "<f4")[0])
    if kind in REALS and len(content) == np.dtype(REALS[kind]).itemsize:
        return float(np.frombuffer(content, REALS[kind])[0])
    return scalar if kind in REALS else None


def _listed(field: Field) -> int:
    """Return the first number of a list of varints, packed or not."""
    return Field(0, varint(field.data, 0)[0], b"").signed if field.data else field.signed


def hyperparameters(metadata: bytes) -> dict[str, Any]:
    """Return the hyperparameters in a session's start metadata."""
    found: dict[str, Any] = {}
    content = metadata
    for number in (1, 2, 3):
        content = next((field.data for field in fields(content) if field.number == number), b"")
    for entry in fields(content):
        if entry.number == 1:
            key = value = None
            for part in fields(entry.data):
                if part.number == 1:
                    key = part.text
                elif part.number == 2:  # a google.protobuf.Value: a number, text or boolean
                    kind = next(fields(part.data), Field(0, 0, b""))
                    value = {2: kind.real, 3: kind.text, 4: bool(kind.integer)}.get(kind.number)
            found[str(key)] = value
    return found


def join(found: Sequence[Imported]) -> list[Imported]:
    """Return one run for each folder, as TensorBoard shows them; a tag's second file is its second attempt."""
    folders: dict[str, list[Imported]] = defaultdict(list)
    for each in found:
        folders[os.path.dirname(each.path)].append(each)
    return [_joined(some) if len(some) > 1 else some[0] for some in folders.values()]


def _joined(files: Sequence[Imported]) -> Imported:
    attempts: Counter[str] = Counter()
    parts = []
    for file in sorted(files, key=_began):
        columns = {}
        for name, series in file.columns.items():
            columns[name] = replace(series, attempt=series.attempt + np.int32(attempts[name]))
            attempts[name] = int(columns[name].attempt.max(initial=-1)) + 1
        parts.append(replace(file, columns=columns))
    facts = {key: value for file in files for key, value in file.facts.items()}
    return replace(joined(parts), path=files[0].path, facts=facts)


def _began(file: Imported) -> tuple[float, str]:
    return min((float(series.time[0]) for series in file.columns.values() if len(series)), default=0.0), file.path


FORMAT = ImportFormat("tfevents", "TensorBoard event file", recognises, fill, unite=join, part_of=os.path.dirname)
