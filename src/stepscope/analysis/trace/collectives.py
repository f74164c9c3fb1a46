"""Collectives of many ranks: what each rank recorded, which collectives are the same, and how far clocks differ.

`extract` takes from a trace only what the comparison of ranks needs: a thousand traces do not fit into memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY, roles
from stepscope.analysis.trace.spans import covered
from stepscope.analysis.trace.window import DATA_LOADER, named_like, union, window_of
from stepscope.core.trace import ABSENT, ANNOTATION, KERNEL, OPERATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers
    from stepscope.core.trace import Trace


COLLECTIVES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("all_reduce", r"all_?reduce"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_gather", r"all_?gather"),
        ("all_to_all", r"all_?to_?all|alltoall|sendrecv|dispatch|combine|notify"),
        ("broadcast", r"broadcast"),
        ("reduce", r"reduce"),
        ("barrier", r"barrier"),
        ("send", r"\bsend|_send"),
        ("receive", r"\brecv|_recv|receive"),
    )
)
"""Kinds of communication by the name that is recorded for it, or by the kernel's; first match wins."""
TOGETHER = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")
"""Collectives that no rank can leave before all have arrived."""
ALONE = ("send", "receive")
"""Communication of two ranks, whose order differs from rank to rank: not matched."""
PARTS = ("compute", "copy", "data", "idle")
"""What a rank did between two collectives. `data` is idle time during which it waited for a DataLoader."""
ON_HOST = re.compile(r"^(gloo|mpi|ucc|ccl|xccl|nccl):")
"""Ranges that torch.distributed draws around a collective on the host."""


@dataclass(frozen=True)
class Extract:
    """What the comparison of ranks needs from one rank. Times in ns on the clock of its trace."""

    file: str
    rank: int | None
    clock: int
    """Time 0 of the trace, in ns since 1970 or since the machine started."""
    window_start: int
    window_ns: int
    key: list[str]
    """For each collective its group and kind: ranks take part in the same order."""
    number: list[int]
    """Its number within the group where recorded, `ABSENT` elsewhere."""
    start: Integers
    end: Integers
    before: Integers
    """For each collective and each of `PARTS` the ns since the collective before it."""


def extract(trace: Trace) -> Extract:
    """Take from a trace what the comparison of ranks needs."""
    role = roles(trace)
    row = _communication(trace, role)
    groups, number = _groups(trace, row), trace.number("Seq")[row].tolist()
    recorded = zip(trace.text("Collective name")[row].tolist(), trace.name[row].tolist(), strict=True)
    texts = (trace.names[name] if word == ABSENT else trace.words[word] for word, name in recorded)
    kinds = [next((kind for kind, pattern in COLLECTIVES if pattern.search(text)), "other") for text in texts]
    kept = [place for place, kind in enumerate(kinds) if kind not in ALONE]
    row = row[kept]
    window = window_of(trace)
    return Extract(
        trace.file,
        trace.rank,
        trace.origin + trace.base,
        window.start,
        window.length,
        [f"{groups[place]} {kinds[place]}".strip() for place in kept],
        [number[place] for place in kept],
        trace.start[row],
        trace.end[row],
        _between(trace, role, row),
    )


def _communication(trace: Trace, role: NDArray[np.int8]) -> Integers:
    """Return the rows of collectives: kernels, or, in a trace without a device, the host's ranges around them."""
    if trace.on_device.any():
        return np.flatnonzero((role == COMMUNICATION) & (trace.kind == KERNEL))
    return np.flatnonzero(named_like(trace, ON_HOST, trace.kind <= ANNOTATION))


def _groups(trace: Trace, row: Integers) -> list[str]:
    """Return the group of each collective: its ranks, unless they are abbreviated, else its name, else nothing."""
    words = [*trace.words, ""]  # the last one stands for ABSENT, -1
    ranks, name = ([words[code] for code in trace.text(f"Process Group {key}")[row]] for key in ("Ranks", "Name"))
    return [other if not one or "..." in one else one for one, other in zip(ranks, name, strict=True)]


def _between(trace: Trace, role: NDArray[np.int8], row: Integers) -> Integers:
    """Return what the rank did from the end of the previous collective (or the first event) to each start."""
    low = np.r_[trace.start[:1], np.maximum.accumulate(trace.end[row])][: len(row)]
    high = np.maximum(trace.start[row], low)
    computes = role == COMPUTE if trace.on_device.any() else trace.kind == OPERATOR
    loads = named_like(trace, DATA_LOADER, trace.kind <= ANNOTATION)
    masks = (computes, role == COPY, computes | trace.on_device, loads)
    parts = [union(trace.start[mask], trace.end[mask]) for mask in masks]
    compute, copy, working, data = (covered(part, high) - covered(part, low) for part in parts)
    idle = np.maximum(high - low - working, 0)
    data = np.minimum(data, idle)
    return np.stack([compute, copy, data, idle - data], axis=1)


@dataclass(frozen=True)
class Matched:
    """The same collectives of several ranks: rows are collectives, columns are ranks; NaN where a rank has none."""

    key: list[str]
    start: Floats
    end: Floats
    before: Floats
    """(collectives, ranks, parts)"""


MOST_SHIFT = 8
"""Collectives by which a rank may have begun to record earlier or later than another."""
CLEARER = 0.5
"""A shift is accepted if it makes the spread of the ends this much smaller: steps repeat, so other shifts fit too."""
ENOUGH = 0.5
"""Share of the collectives that must fit for a clock, or another shift, to be accepted."""
TOLERANCE = 0.25
"""Maximum distance between the ends of one collective, as a share of the usual time between two collectives."""
SINCE_1970 = 10**18
"""A larger clock (2001) counts the ns since 1970, and the clocks of two machines then nearly agree."""
STRAY, JITTER = 10, 50_000
"""Ends further apart than so many times the median plus so many ns belong to different collectives."""


def match(extracts: list[Extract]) -> Matched:
    """Find the same collectives in several ranks: by group, kind and number, or else by when they end."""
    found: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    places = [_places(one) for one in extracts]
    for key in sorted({key for own in places for key in own}):
        first: tuple[Integers, int] | None = None
        for rank, one in enumerate(extracts):
            if key not in places[rank]:
                continue
            place = places[rank][key]
            number = np.array(one.number, dtype=np.int64)[place]
            if (number == ABSENT).any() or len(np.unique(number)) < len(number):
                first = (one.end[place], one.clock) if first is None else first
                known = min(one.clock, first[1]) > SINCE_1970
                number = paired(first[0], one.end[place], first[1] - one.clock if known else None)
            for at, own in zip(place.tolist(), number.tolist(), strict=True):
                if own != ABSENT:
                    found[key, own][rank] = at
    return _table(extracts, {key: members for key, members in found.items() if len(members) > 1})


def _table(extracts: list[Extract], shared: dict[tuple[str, int], dict[int, int]]) -> Matched:
    shape = len(shared), len(extracts)
    start, end, before = np.full(shape, np.nan), np.full(shape, np.nan), np.full((*shape, len(PARTS)), np.nan)
    for row, members in enumerate(shared.values()):
        for rank, at in members.items():
            start[row, rank], end[row, rank] = extracts[rank].start[at], extracts[rank].end[at]
            before[row, rank] = extracts[rank].before[at]
    return Matched([key for key, _ in shared], start, end, before)


def _places(one: Extract) -> dict[str, Integers]:
    """Return the places of a rank's collectives by their key."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, key in enumerate(one.key):
        places[key].append(place)
    return {key: np.array(listed, dtype=np.int64) for key, listed in places.items()}


def paired(reference: Integers, ends: Integers, clock: int | None = None) -> Integers:
    """Return for each end the place in the reference at which the same collective ended; `ABSENT` if there is none.

    Both are in order: `reference` on another rank's clock, `ends` on this rank's clock, which is ahead by `clock` as
    far as the machines know; None if they do not.
    """
    if clock is not None:
        near = _nearest(reference, ends - clock)
        fit = _Fit.of(reference, ends, int(np.median(ends - reference[near])))
        if fit.count >= ENOUGH * min(len(reference), len(ends)):
            return fit.place
    best: _Fit | None = None
    for shift in sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs):
        count = min(len(reference) - max(shift, 0), len(ends) - max(-shift, 0))
        if count > 0:
            gap = ends[max(-shift, 0) :][:count] - reference[max(shift, 0) :][:count]
            fit = _Fit.of(reference, ends, int(np.median(gap)))
            best = fit if best is None or fit.clearer(best) else best
    return best.place if best is not None else np.full(len(ends), ABSENT, dtype=np.int64)


@dataclass(frozen=True)
class _Fit:
    """How well one difference of clocks explains the ends of two ranks."""

    place: Integers
    count: int
    spread: float

    @classmethod
    def of(cls, reference: Integers, ends: Integers, ahead: int) -> _Fit:
        """Pair each end with the nearest one of the reference that is near enough; each of those is used once."""
        near = _nearest(reference, ends - ahead)
        off = np.abs(ends - ahead - reference[near])
        apart = float(np.median(np.diff(reference))) if len(reference) > 1 else np.inf
        order = np.argsort(off, kind="stable")
        order = order[off[order] <= TOLERANCE * apart]
        order = order[off[order] <= JITTER + STRAY * np.median(off[order])] if len(order) else order
        once = order[np.unique(near[order], return_index=True)[1]]
        place = np.full(len(ends), ABSENT, dtype=np.int64)
        place[once] = near[once]
        return cls(place, len(once), float(np.median(off[once])) if len(once) else np.inf)

    def clearer(self, other: _Fit) -> bool:
        """Return whether this explains clearly more than the other."""
        return self.count * ENOUGH > other.count or (
            self.count > ENOUGH * other.count and self.count > 2 and self.spread < CLEARER * other.spread
        )


def _nearest(reference: Integers, moments: Integers) -> Integers:
    """Return for each moment the place of the nearest one in the reference."""
    after = np.clip(np.searchsorted(reference, moments), 1, len(reference) - 1) if len(reference) > 1 else 0
    after = np.broadcast_to(after, moments.shape)
    before = np.maximum(after - 1, 0)
    return np.where(moments - reference[before] <= reference[after] - moments, before, after)


ROUNDS = 5
"""Rounds of refinement of the clocks; they converge in two or three."""


def align(matched: Matched) -> tuple[Floats, float]:
    """Return the clock of each rank relative to the first in ns, NaN if they share nothing, and the remaining spread.

    Only collectives that no rank can leave early count, if there are any.
    """
    together = np.array([key.split()[-1] in TOGETHER for key in matched.key])
    end = matched.end[together] if together.any() else matched.end
    offset = _reached(end)
    for _ in range(ROUNDS):
        centre = medians(end - offset, axis=1)
        offset = medians(end - centre[:, None], axis=0)
    left = np.abs(end - offset - medians(end - offset, axis=1)[:, None])
    return offset, float(np.median(left[np.isfinite(left)])) if np.isfinite(left).any() else 0.0


def _reached(end: Floats) -> Floats:
    """Return the clocks found by going from rank to rank along shared collectives, most shared first."""
    has = np.isfinite(end)
    shared = has.astype(np.int64).T @ has.astype(np.int64)
    offset = np.full(end.shape[1], np.nan)
    offset[int(np.argmax(has.any(axis=0)))] = 0.0
    while True:
        known = np.isfinite(offset)
        links = np.where(np.outer(known, ~known), shared, 0)
        if not links.any():
            return offset
        old, new = np.unravel_index(int(np.argmax(links)), links.shape)
        gap = end[:, new] - end[:, old]
        offset[new] = offset[old] + float(np.median(gap[np.isfinite(gap)]))


def medians(values: Floats, axis: int) -> Floats:
    """Return the medians of the finite values; NaN if there is none."""
    finite = np.isfinite(values)
    lifted = np.sort(np.where(finite, values, np.inf), axis=axis)
    count = finite.sum(axis=axis)
    low, high = (
        np.take_along_axis(lifted, np.expand_dims(at, axis), axis).squeeze(axis)
        for at in (np.maximum(count - 1, 0) // 2, np.maximum(count, 1) // 2)
    )
    return np.where(count > 0, (low + high) / 2, np.nan)
