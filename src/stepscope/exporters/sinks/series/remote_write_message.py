"""Messages of Prometheus remote write, 1.0 and 2.0: samples of labelled series as bytes, encoded by columns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.exporters.prometheus.exposition import COUNTER, GAUGE
from stepscope.exporters.protobuf import BYTES, FIXED64, VARINT, block, integer, key, text, varint
from stepscope.exporters.protobuf_columns import as_bytes, placed, repeated, varint_widths, varints

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.exporters.sinks.series.labelled import LabelledSeries

NORMAL_NAN = 0x7FF8000000000001
"""The NaN that is a value. Another one, 0x7FF0000000000002, would end the series."""
METRIC_TYPES = {COUNTER: 1, GAUGE: 2}
SERIES, REFS, METADATA, HELP_REF, UNIT_REF = key(5, BYTES), key(1, BYTES), key(5, BYTES), key(3, VARINT), key(4, VARINT)
"""Keys of the fields of a 2.0 message."""
KEPT = 1 << 14
"""Series whose encoded labels are kept."""
_kept_varint = lru_cache(maxsize=1 << 15)(varint)
NO_SERIES = text(4, "")
"""A 2.0 message without series: its table of texts begins with the empty one."""


@dataclass(frozen=True)
class Samples:
    """Samples as columns, ordered by series and time; no series has two at one time."""

    series: NDArray[np.int64]
    """Number of the series."""
    time: NDArray[np.int64]
    """Milliseconds since 1970 UTC."""
    value: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.series)

    def select(self, index: NDArray[Any]) -> Samples:
        """Return the samples of a mask."""
        return Samples(self.series[index], self.time[index], self.value[index])


def in_time_order(series: NDArray[np.int64], time: NDArray[np.int64], value: NDArray[np.float64]) -> Samples:
    """Return samples in order; of several at one time of a series the last given one counts."""
    order = np.lexsort((time, series))
    found = Samples(series[order], time[order], value[order])
    last = np.ones(len(found), bool)
    last[:-1] = (found.series[1:] != found.series[:-1]) | (found.time[1:] != found.time[:-1])
    return found if last.all() else found.select(last)


def message_1(table: Sequence[LabelledSeries], samples: Samples) -> bytes:
    """Return a WriteRequest of remote write 1.0."""
    pieces: list[bytes] = []
    for number, rows in _by_series(samples):
        head = _labels_1(table[number])
        pieces += (key(1, BYTES), varint(len(head) + len(rows)), head, rows)
    return b"".join(pieces)


def message_2(table: Sequence[LabelledSeries], samples: Samples) -> bytes:
    """Return a Request of remote write 2.0: texts stand once in a table, and series refer to them."""
    symbols: dict[str, int] = {"": 0}
    pieces: list[bytes] = []
    for number, rows in _by_series(samples):
        words, kind = _words(table[number])
        refs = [_kept_varint(symbols.setdefault(word, len(symbols))) for word in words]
        labels = b"".join(refs[:-2])
        tail = kind + HELP_REF + refs[-2] + UNIT_REF + refs[-1]
        sizes = varint(len(labels)), varint(len(tail))
        size = 2 + len(sizes[0]) + len(sizes[1]) + len(labels) + len(tail) + len(rows)
        pieces += (SERIES, varint(size), REFS, sizes[0], labels, rows, METADATA, sizes[1], tail)
    return b"".join([text(4, symbol) for symbol in symbols] + pieces)


@lru_cache(maxsize=KEPT)
def _labels_1(series: LabelledSeries) -> bytes:
    """Return the labels of a series as fields of remote write 1.0."""
    return b"".join(block(1, text(1, name) + text(2, value)) for name, value in series.labels)


@lru_cache(maxsize=KEPT)
def _words(series: LabelledSeries) -> tuple[tuple[str, ...], bytes]:
    """Return the texts of a series, its help and unit last, and its type as the first field of its metadata."""
    words = itertools.chain(*series.labels, (series.help, series.unit))
    return tuple(words), integer(1, METRIC_TYPES[series.kind])


def _by_series(samples: Samples) -> Iterator[tuple[int, bytes]]:
    """Yield each series with its encoded samples."""
    if not len(samples):
        return
    data, starts = _rows(samples)
    firsts = np.flatnonzero(np.diff(samples.series, prepend=-1))
    cuts = [*starts[firsts].tolist(), len(data)]
    for place, number in enumerate(samples.series[firsts].tolist()):
        yield number, data[cuts[place] : cuts[place + 1]]


def _rows(samples: Samples) -> tuple[bytes, NDArray[np.int64]]:
    """Return the samples as fields of a series, and where each starts. Times of equal length are encoded together."""
    bits = np.where(np.isnan(samples.value), np.uint64(NORMAL_NAN), samples.value.view(np.uint64))
    widths = varint_widths(samples.time)
    starts = np.cumsum(widths + 12) - (widths + 12)
    buffer = np.empty(int(starts[-1] + widths[-1] + 12), np.uint8)
    for width in np.unique(widths).tolist():
        chosen = np.flatnonzero(widths == width)
        same = partial(repeated, len(chosen))
        head = key(2, BYTES) + varint(10 + width) + key(1, FIXED64)
        times = varints(samples.time[chosen], width)
        rows = np.hstack([same(head), as_bytes(bits[chosen].astype("<u8")), same(key(2, VARINT)), times])
        if len(chosen) == len(samples):
            return rows.tobytes(), starts
        placed(buffer, starts[chosen], rows)
    return buffer.tobytes(), starts
