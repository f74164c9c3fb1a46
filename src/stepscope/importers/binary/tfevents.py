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


_length_crc = lru_cache(maxsize=4096)(masked_crc)
"""Checksum of a length; most records of a file share a few lengths."""


def recognises(head: FileHead) -> bool:
    """Return whether a file starts with the length of a record and its checksum."""
    if len(head.data) < LENGTH.size:
        return False
    return masked_crc(head.data[:8]) == int(CRC.unpack_from(head.data, 8)[0])


def fill(path: str, run: RunBuilder) -> None:
    """Read the scalars of one file, up to the first damaged length."""
    attempt = 0
    for record in _records(path, run.note):
        try:
            event = decode(record)
        except ValueError:
            run.note("records that are no events, left out")
            continue
        attempt += event.started and bool(run.columns)
        run.facts |= event.facts
        for tag, value in event.scalars:
            run.add(tag, value, event.step, event.time, 0, attempt)
        for tag in event.others:
            run.leave_out("images, histograms and texts", tag)


def _records(path: str, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the content of the records with valid checksums."""
    buffer = bytearray()
    wanted = LENGTH.size
    for piece in chunks(path, note):
        buffer += piece
        at = 0
        while len(buffer) - at >= wanted:
            size, crc = LENGTH.unpack_from(buffer, at)
            if _length_crc(bytes(buffer[at : at + 8])) != crc or size > MOST_RECORD:
                note("a record's length is damaged: what follows is not read")
                return
            whole = LENGTH.size + size + CRC.size
            if len(buffer) - at < whole:
                wanted = whole
                break
            content = bytes(buffer[at + LENGTH.size : at + LENGTH.size + size])
            if size <= CHECKED_BYTES and masked_crc(content) != CRC.unpack_from(buffer, at + whole - CRC.size)[0]:
                note("records with a wrong checksum, left out")
            else:
                yield content
            at += whole
            wanted = LENGTH.size
        del buffer[:at]
    if buffer:
        note("the last record is cut: the run was being written or was killed")


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


FORMAT = ImportFormat("tfevents", "TensorBoard event file", recognises, fill, unite=join)
