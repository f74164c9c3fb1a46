"""Traces written by hand: a few events of which every answer is known. Times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.core.trace import (
    ABSENT,
    ANNOTATION,
    KERNEL,
    MEMCPY,
    OPERATOR,
    RUNTIME,
    Lane,
    Memory,
    Sparse,
    Trace,
)


@dataclass
class Rig:
    """Collects events and makes a trace of them."""

    rank: int | None = 0
    origin: int = 0
    """ns"""
    events: list[dict] = field(default_factory=list)
    reports: list[tuple[float, int, int, int]] = field(default_factory=list)
    launches: int = 0

    def add(self, kind: int, name: str, start: float, end: float, lane: tuple = ("host", 1), **more) -> Rig:
        """Add any event."""
        self.events.append({"kind": kind, "name": name, "start": start, "end": end, "lane": lane, **more})
        return self

    def operator(self, name: str, start: float, end: float, thread: int = 1, **more) -> Rig:
        """Add an operator."""
        return self.add(OPERATOR, name, start, end, ("host", thread), **more)

    def annotation(self, name: str, start: float, end: float, thread: int = 1) -> Rig:
        """Add an annotation."""
        return self.add(ANNOTATION, name, start, end, ("host", thread))

    def call(self, name: str, start: float, end: float, thread: int = 1, correlation: int = ABSENT) -> Rig:
        """Add a call of the runtime."""
        return self.add(RUNTIME, name, start, end, ("host", thread), correlation=correlation)

    def launch(
        self,
        name: str,
        called: tuple[float, float],
        ran: tuple[float, float],
        stream: int = 7,
        thread: int = 1,
        kind: int = KERNEL,
        by: str = "cudaLaunchKernel",
        **more,
    ) -> Rig:
        """Add a call and what it launched."""
        self.launches += 1
        self.call(by, *called, thread=thread, correlation=self.launches)
        return self.add(kind, name, *ran, ("gpu", stream), correlation=self.launches, **more)

    def copy(self, called: tuple[float, float], ran: tuple[float, float], **more) -> Rig:
        """Add a copy."""
        return self.launch("Memcpy HtoD", called, ran, kind=MEMCPY, by="cudaMemcpyAsync", **more)

    def memory(self, time: float, size: int, address: int, allocated: int = ABSENT) -> Rig:
        """Add a report of the allocator of device 0."""
        self.reports.append((time, size, address, allocated))
        return self

    def trace(self) -> Trace:
        """Return the trace."""
        events = sorted(self.events, key=lambda one: (one["start"], -one["end"]))
        names = list(dict.fromkeys(one["name"] for one in events))
        places = list(dict.fromkeys([one["lane"] for one in events] + [("host", 1)]))
        lanes = [Lane(*place, device=0, stream=place[1]) if place[0] == "gpu" else Lane(*place) for place in places]
        words = list(dict.fromkeys(str(one[key]) for one in events for key in ("shapes", "group") if key in one))

        def column(key, kind=np.int64, scale=1):
            return np.array([round(one.get(key, ABSENT) * scale) for one in events], dtype=kind)

        def sparse(key, value):
            rows = [row for row, one in enumerate(events) if key in one]
            return Sparse(np.array(rows, dtype=np.intp), np.array([value(events[row][key]) for row in rows], np.int64))

        reports = np.array(self.reports, dtype=np.int64).reshape(-1, 4)
        count = len(reports)
        return Trace(
            file="hand.json",
            rank=self.rank,
            start=column("start", scale=1000),
            end=column("end", scale=1000),
            name=np.array([names.index(one["name"]) for one in events], np.int32),
            kind=column("kind", np.int8),
            lane=np.array([places.index(one["lane"]) for one in events], np.int32),
            correlation=column("correlation"),
            external=column("external"),
            names=names,
            words=words,
            lanes=lanes,
            memory=Memory(
                reports[:, 0] * 1000,
                reports[:, 1],
                reports[:, 2],
                reports[:, 3],
                np.full(count, ABSENT, np.int64),
                np.zeros(count, np.int32),
                np.full(count, places.index(("host", 1)), np.int32),
            ),
            numbers={"graph node id": sparse("node", int)},
            texts={"Input Dims": sparse("shapes", words.index), "Process Group Ranks": sparse("group", words.index)},
            origin=self.origin,
        )
