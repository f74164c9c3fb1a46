"""Hangs with a known cause, and healthy pauses, as the evidence that watchers would collect of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stepscope.analysis.hang.evidence import (
    FlightRecord,
    HangEvidence,
    RankEvidence,
    RasCommunicator,
    RasReport,
)

Op = tuple[str, str, int]
"""Name of the group, operation, and elements."""
TORCH = "/venv/lib/python3.12/site-packages/torch"
STEPS = 4
"""Steps that a planted job does before the fault."""


@dataclass(frozen=True)
class Planted:
    """A job and what is true of it."""

    name: str
    evidence: HangEvidence
    kind: str
    ranks: tuple[int, ...] = ()


def frame(file: str, line: int, function: str) -> dict[str, Any]:
    """Return one frame of a stack."""
    return {"file": file, "line": line, "function": function}


def thread(*frames: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the stacks of a process with one thread."""
    return ({"thread": "0x1", "name": "MainThread", "frames": [*frames, frame("/w/train.py", 9, "<module>")]},)


def collective(name: str = "all_reduce", line: int = 88) -> tuple[dict[str, Any], ...]:
    """Return the stacks of a rank that waits in a collective."""
    inner = frame(f"{TORCH}/distributed/distributed_c10d.py", 3245, name)
    return thread(
        inner, frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"), frame("/w/train.py", line, "step")
    )


OWN = thread(frame("/w/train.py", 41, "augment"))
SLEEPS = thread(frame("/w/train.py", 42, "wait_for_file"))
LOADS = thread(
    frame("/w/data.py", 41, "__getitem__"),
    frame(f"{TORCH}/utils/data/_utils/fetch.py", 54, "fetch"),
    frame(f"{TORCH}/utils/data/dataloader.py", 708, "__next__"),
    frame("/w/train.py", 80, "main"),
)
SAVES = thread(frame(f"{TORCH}/serialization.py", 944, "save"), frame("/w/train.py", 99, "save"))
COMPILES = thread(frame(f"{TORCH}/_inductor/compile_fx.py", 300, "compile_fx"), frame("/w/train.py", 70, "forward"))
VALIDATES = thread(frame("/w/train.py", 120, "evaluate"))
DEBUGS = thread(frame("/usr/lib/python3.12/pdb.py", 360, "interaction"), frame("/w/train.py", 55, "step"))


def waits(state: str, waits_in: str = "") -> tuple[dict[str, Any], ...]:
    """Return what the kernel says of a process with one thread."""
    return ({"thread": 1, "name": "python", "state": state, "waits_in": waits_in},)


OUTSIDE: dict[str, dict[str, Any]] = {
    "disk": {"stacks": OWN, "waits": waits("D", "folio_wait_bit_common")},
    "nfs": {"stacks": SAVES, "waits": waits("D", "rpc_wait_bit_killable")},
    "pipe": {"stacks": OWN, "waits": waits("S", "wait_for_partner")},
    "lock": {"stacks": OWN, "waits": waits("S", "futex_wait_queue")},
    "gil": {"stacks": OWN, "waits": waits("R"), "no_stacks": "the interpreter does not answer: native code holds it"},
    "debugger": {"stacks": DEBUGS, "waits": waits("S", "wait_woken")},
    "traced": {"stacks": (), "waits": waits("t"), "no_stacks": "the process is stopped"},
    "stopped": {"stacks": (), "waits": waits("T"), "no_stacks": "the process is stopped"},
}
INSIDE: dict[str, dict[str, Any]] = {
    "sleep": {"stacks": SLEEPS, "waits": waits("S", "hrtimer_nanosleep")},
    "own code": {"stacks": OWN, "waits": waits("R")},
    "data": {"stacks": LOADS, "waits": waits("S", "do_poll")},
}


def job(count: int, **changes: dict[str, Any] | int) -> HangEvidence:
    """Return a job whose ranks all wait in the same collective; `r3={...}` changes what is known of rank 3."""
    common = {"step": 60, "steps": 61, "silent_seconds": 25.0, "usual_seconds": 0.2, "stall": "hung"}
    ranks = [
        RankEvidence(rank, f"node-{rank // 8}", stacks=collective(), waits=waits("S", "futex_wait_queue"), **common)
        for rank in range(count)
    ]
    for name, change in changes.items():
        if isinstance(change, dict):
            ranks[int(name[1:])] = replace(ranks[int(name[1:])], **change)
    return HangEvidence(tuple(ranks), count)


class Recorders:
    """Flight recorders of ranks that run the same program, until one of them differs."""

    def __init__(
        self, count: int, groups: dict[str, list[tuple[int, ...]]] | None = None, backend: str = "nccl"
    ) -> None:
        """Make the recorders of `count` ranks; `groups`: the parts of the job by the kind of group."""
        self.count, self.backend = count, backend
        self.parts = {"world": [tuple(range(count))], **(groups or {})}
        self.programs: dict[int, list[Op]] = {rank: [] for rank in range(count)}
        self.broken: set[tuple[str, int]] = set()
        """Kinds and numbers of collectives that nobody leaves."""

    def step(self, *ops: Op, times: int = STEPS) -> None:
        """Let all ranks run these collectives."""
        for program in self.programs.values():
            program.extend(ops * times)

    def only(self, ranks: tuple[int, ...], *ops: Op) -> None:
        """Let some ranks run more."""
        for rank in ranks:
            self.programs[rank].extend(ops)

    def _group(self, rank: int, kind: str) -> tuple[int, ...]:
        return next(part for part in self.parts[kind] if rank in part)

    def records(self, keep: int = 2000) -> dict[int, FlightRecord]:
        """Run all programs as far as they come, each rank blocked by its collective; return what each has recorded."""
        at = dict.fromkeys(self.programs, 0)
        numbers: dict[int, dict[str, int]] = {rank: {} for rank in self.programs}
        entered: dict[int, list[tuple[int, Op]]] = {rank: [] for rank in self.programs}
        done: dict[int, int] = dict.fromkeys(self.programs, 0)
        moves = True
        while moves:
            moves = False
            for rank, program in self.programs.items():
                if len(entered[rank]) == done[rank] and at[rank] < len(program):
                    op = program[at[rank]]
                    number = numbers[rank][op[0]] = numbers[rank].get(op[0], 0) + 1
                    entered[rank].append((number, op))
                    at[rank] += 1
                    moves = True
            for rank in self.programs:
                if len(entered[rank]) > done[rank] and self._is_complete(entered, entered[rank][-1], rank):
                    done[rank] += 1
                    moves = True
        return {rank: FlightRecord.of(self._dump(rank, entered[rank], done[rank], keep)) for rank in self.programs}

    def _is_complete(self, entered: dict[int, list[tuple[int, Op]]], own: tuple[int, Op], rank: int) -> bool:
        number, op = own
        if (op[0], number) in self.broken:
            return False
        return all((number, op) in entered[other] for other in self._group(rank, op[0]))

    def _dump(self, rank: int, entered: list[tuple[int, Op]], done: int, keep: int) -> dict[str, Any]:
        kinds = list(self.parts)
        config = {}
        for kind in kinds:
            part = self._group(rank, kind)
            name = str(kinds.index(kind) * 100 + self.parts[kind].index(part))
            config[kind] = {"name": name, "desc": "default_pg" if kind == "world" else kind, "ranks": str(list(part))}
        rows = []
        for place, (number, (kind, operation, size)) in enumerate(entered):
            is_done = place < done
            rows.append(
                {
                    "record_id": place,
                    "pg_id": kinds.index(kind),
                    "process_group": (config[kind]["name"], config[kind]["desc"]),
                    "collective_seq_id": number,
                    "p2p_seq_id": 0,
                    "profiling_name": f"{self.backend}:{operation}",
                    "time_created_ns": (1_700_000_000 + place) * 10**9,
                    "input_sizes": [[size]],
                    "input_dtypes": ["Float"],
                    "state": "completed" if is_done and self.backend == "nccl" else "scheduled",
                    "retired": is_done,
                    "is_p2p": False,
                }
            )
        named = {one["name"]: one for one in config.values()} if self.backend == "nccl" else {"": {"ranks": "[]"}}
        return {"version": "2.10", "pg_config": named, "pg_status": {}, "entries": rows[-keep:]}

    def evidence(self, *lost: int, keep: int = 2000) -> HangEvidence:
        """Return the evidence of dumps alone, without those of `lost` ranks."""
        ranks = [
            RankEvidence(rank, stall="hung", record=record)
            for rank, record in self.records(keep).items()
            if rank not in lost
        ]
        return HangEvidence(tuple(ranks), self.count)


STEP: tuple[Op, ...] = (("world", "all_reduce", 64), ("world", "all_gather", 64), ("world", "barrier", 0))


def grid(tensor: int, data: int) -> dict[str, list[tuple[int, ...]]]:
    """Return the groups of a job with tensor and data parallelism."""
    return {
        "tensor": [tuple(range(first * tensor, (first + 1) * tensor)) for first in range(data)],
        "data": [tuple(range(first, tensor * data, tensor)) for first in range(tensor)],
    }


def planted() -> list[Planted]:
    """Return the hangs."""
    return [*_by_stacks(), *_by_records(), *_by_both(), *_by_ras()]


def _by_stacks() -> list[Planted]:
    found = []
    for count in (2, 4, 8, 64):
        last = count - 1
        for name, change in INSIDE.items():
            found.append(
                Planted(f"{name}, {count} ranks", job(count, **{f"r{last}": change}), "never_arrived", (last,))
            )
        for name, change in OUTSIDE.items():
            found.append(
                Planted(f"{name}, {count} ranks", job(count, **{f"r{last}": change}), "outside_torch", (last,))
            )
        killed = {"state": "killed", "cause": "killed by SIGKILL", "stall": "", "stacks": (), "waits": ()}
        found.append(Planted(f"killed, {count} ranks", job(count, **{f"r{last}": killed}), "dead_rank", (last,)))
        ended = job(
            count,
            **{
                f"r{rank}": {"state": "killed", "cause": "killed by SIGTERM", "stall": "", "ended": 9.0}
                for rank in range(count)
            },
        )
        first = replace(ended.ranks[last], cause="killed by SIGKILL", ended=8.0)
        ended = replace(ended, ranks=(*ended.ranks[:-1], first))
        found.append(Planted(f"killed first, {count} ranks", ended, "dead_rank", (last,)))
        found.append(Planted(f"all inside, {count} ranks", job(count), "collective_stuck"))
        if count > 2:
            other = {"stacks": collective("broadcast", 90)}
            found.append(Planted(f"another, {count} ranks", job(count, r1=other), "desynchronised", (1,)))
    return found


def _by_records() -> list[Planted]:
    found = []
    for count in (2, 4, 8, 64):
        everybody, last = tuple(range(count)), count - 1
        for backend in ("nccl", "gloo"):
            late = Recorders(count, backend=backend)
            late.step(*STEP)
            late.only(everybody[:-1], *STEP)
            found.append(Planted(f"late, {count} {backend}", late.evidence(), "never_arrived", (last,)))
            found.append(Planted(f"late, lost, {count} {backend}", late.evidence(last), "dead_rank", (last,)))
            found.append(Planted(f"late, wrapped, {count} {backend}", late.evidence(keep=5), "never_arrived", (last,)))
            odd = Recorders(count, backend=backend)
            odd.step(*STEP)
            odd.only(everybody[:-1], *STEP)
            odd.only((last,), ("world", "broadcast", 64))
            found.append(Planted(f"broadcast, {count} {backend}", odd.evidence(), "desynchronised", (last,)))
            shape = Recorders(count, backend=backend)
            shape.step(*STEP)
            shape.only(everybody[:-1], *STEP)
            shape.only((last,), ("world", "all_reduce", 128))
            found.append(Planted(f"shape, {count} {backend}", shape.evidence(), "desynchronised", (last,)))
            stuck = Recorders(count, backend=backend)
            stuck.step(*STEP)
            stuck.broken.add(("world", 5))
            found.append(Planted(f"stuck, {count} {backend}", stuck.evidence(), "collective_stuck"))
    return found + _by_groups()


def _by_groups() -> list[Planted]:
    found = []
    ops: tuple[Op, ...] = (("tensor", "all_reduce", 8), ("data", "reduce_scatter", 8), ("world", "barrier", 0))
    for tensor, data in ((2, 2), (2, 4), (8, 8)):
        count = tensor * data
        everybody = tuple(range(count))
        late = Recorders(count, grid(tensor, data))
        late.step(*ops)
        late.only(tuple(rank for rank in everybody if rank != 1), *ops)
        found.append(Planted(f"chain of groups, {count}", late.evidence(), "never_arrived", (1,)))
        found.append(Planted(f"chain of groups, lost, {count}", late.evidence(1), "dead_rank", (1,)))
        between = Recorders(count, grid(tensor, data))
        between.step(*ops)
        between.only(tuple(rank for rank in everybody if rank != 2), *ops)
        between.only((2,), ops[0])
        found.append(Planted(f"between groups, {count}", between.evidence(), "never_arrived", (2,)))
    for count in (2, 4, 8):
        everybody = tuple(range(count))
        crossed = Recorders(count, {"tensor": [everybody], "data": [everybody]})
        crossed.step(*ops)
        crossed.only(everybody[1:], *ops)
        crossed.only((0,), ops[1], ops[0])
        one = (0,) if count > 2 else everybody
        found.append(Planted(f"crossed, {count}", crossed.evidence(), "desynchronised", one))
    return found


def _by_both() -> list[Planted]:
    late = Recorders(8)
    late.step(*STEP)
    late.only(tuple(range(7)), *STEP)
    records = late.records()
    found = []
    for name, change in {**INSIDE, **OUTSIDE}.items():
        kind = "outside_torch" if name in OUTSIDE else "never_arrived"
        seen = job(8, r7=change)
        ranks = tuple(replace(one, record=records[one.rank]) for one in seen.ranks)
        found.append(Planted(f"{name} with records", replace(seen, ranks=ranks), kind, (7,)))
        silent = tuple(replace(one, record=records[one.rank] if one.rank != 7 else None) for one in seen.ranks)
        found.append(Planted(f"{name} without its record", replace(seen, ranks=silent), kind, (7,)))
    return found


def _by_ras() -> list[Planted]:
    counts = {rank: {"AllReduce": 100 - (rank == 3)} for rank in range(8)}
    behind = RasCommunicator("0xab", counts, dict.fromkeys(counts, "RUNNING"), size=8)
    gone = RasCommunicator("0xab", {rank: {"AllReduce": 100} for rank in range(7)}, dead=(7,), size=8)
    bare = tuple(replace(rank, stacks=(), waits=()) for rank in job(8).ranks)
    cases = (("behind", behind, "never_arrived", (3,)), ("gone", gone, "dead_rank", (7,)))
    return [
        Planted(f"RAS: {name}", HangEvidence(bare, 8, RasReport((one,), (one,))), kind, ranks)
        for name, one, kind, ranks in cases
    ]


def healthy() -> list[Planted]:
    """Return jobs that do not hang, however long they pause."""
    moves = {"stall": "", "silent_seconds": 1.0}
    calm: dict[str, dict[str, Any]] = {f"r{rank}": moves for rank in range(8)}
    pauses = {
        "checkpoint": {"stacks": SAVES, "stall": "stalled", "phase": "checkpoint"},
        "checkpoint by its stacks": {"stacks": SAVES, "stall": "stalled", "waits": waits("R")},
        "compile": {"stacks": COMPILES, "stall": "stalled", "waits": waits("R")},
        "compile phase": {"stacks": OWN, "stall": "", "phase": "compile"},
        "evaluation": {"stacks": VALIDATES, "stall": "stalled", "phase": "evaluation", "waits": waits("R")},
        "evaluation by its name": {"stacks": VALIDATES, "stall": "", "waits": waits("R")},
    }
    found = [Planted(f"rank 0: {name}", job(8, r0=change), "none") for name, change in pauses.items()]
    found += [
        Planted(f"all: {name}", job(8, **{f"r{rank}": change for rank in range(8)}), "none")
        for name, change in pauses.items()
    ]
    slow = {**calm, "r2": {**moves, "silent_seconds": 9.0, "stacks": LOADS, "waits": waits("D", "folio_wait_bit")}}
    found.append(Planted("slow disk, but moves", job(8, **slow), "none"))
    found.append(Planted("all in a collective, but move", job(8, **calm), "none"))
    found.append(Planted("first batch", job(8, **{name: {**moves, "step": None} for name in calm}), "none"))
    stopped = {**calm, "r1": {**moves, "stacks": OWN, "waits": waits("T")}}
    found.append(Planted("stopped for a second", job(8, **stopped), "none"))
    found.append(Planted("idle prompt", job(1, r0={**moves, "silent_seconds": 4000.0}), "none"))
    over = {"state": "finished", "stall": ""}
    found.append(Planted("ended", job(8, **{f"r{rank}": over for rank in range(8)}), "none"))
    term = {"state": "killed", "stall": "", "cause": "killed by SIGTERM", "ended": 9.0}
    found.append(Planted("cancelled", job(8, **{f"r{rank}": term for rank in range(8)}), "none"))
    failed = {"state": "failed", "stall": "", "cause": "ValueError"}
    found.append(Planted("failed", job(8, **{f"r{rank}": failed for rank in range(8)}), "none"))
    found.append(Planted("one has finished, others move", job(8, **{**calm, "r0": over}), "none"))
    uneven = {**calm, "r5": {**moves, "silent_seconds": 12.0, "stacks": OWN, "waits": waits("R")}}
    found.append(Planted("uneven work", job(8, **uneven), "none"))
    flying = Recorders(8)
    flying.step(*STEP)
    flying.only(tuple(range(5)), *STEP)
    ranks = tuple(
        replace(one, record=record) for one, record in zip(job(8, **calm).ranks, flying.records().values(), strict=True)
    )
    found.append(Planted("collectives in flight", HangEvidence(ranks, 8), "none"))
    return found
