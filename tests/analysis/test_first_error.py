"""The first true error among many ranks."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import failure_texts as texts
from bench import real_failure_texts as real
from bench.failure_cases import CASES, drawn
from bench.real_failures import CASES as REAL
from stepscope.analysis.first_error.evidence import EndedRank, ErrorEvidence, Skew
from stepscope.analysis.first_error.judge import first_error, launcher_choice, ranks_text
from stepscope.analysis.first_error.report import reports_of
from stepscope.core.console_line import ConsoleLine

SMALL = [*drawn(5, len(CASES), ranks=32), *drawn(6, len(REAL), ranks=32, cases=REAL)]
GLOO = texts.gloo_closed()


def lines_of(rank: int, time: float, lines: list[str], node: str = "a", stream: str = "err") -> list[ConsoleLine]:
    return [ConsoleLine(time + at / 1e4, rank, 0, node, at, stream, text) for at, text in enumerate(lines)]


@pytest.mark.parametrize("case", SMALL, ids=[case.name for case in SMALL])
def test_every_kind_of_failure_is_named_right(case) -> None:
    """The verdict names the ranks that began each kind of failure, and what happened to them."""
    found = first_error(case.evidence)
    assert found is not None
    assert (set(found.ranks), found.kind in case.kinds) == (set(case.ranks), True), found.summary
    assert found.why
    assert len(found.lines) <= 20


def test_a_chain_is_shown_from_its_root_on() -> None:
    """The root of a chain of exceptions is the error; the text keeps the whole chain, root first."""
    lines = lines_of(
        2, 5.0, [f"[rank2]: {one}" if one else "" for one in texts.chained("KeyError: 'x'", "RuntimeError: y")]
    )
    found = first_error(ErrorEvidence({2: lines, 0: lines_of(0, 4.9, GLOO)}))
    assert found is not None
    assert (found.rank, found.error, found.chain) == (2, "KeyError: 'x'", ("KeyError: 'x'", "RuntimeError: y"))
    assert found.others[0].ranks == (0,)
    assert found.others[0].why == "its peer was gone already"


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (real.rich_box("ValueError: bad"), "/home/user/train.py:148"),
        (real.loguru("ValueError: bad"), "/home/user/train.py:148"),
        (real.group("ValueError: bad"), "/home/user/data/shards.py:41"),
        (real.json_line("ValueError: bad"), "/home/user/train.py:148"),
    ],
    ids=["rich", "loguru", "group", "json"],
)
def test_tracebacks_are_read_however_they_are_drawn(lines: list[str], place: str) -> None:
    """Boxes of rich, loguru's variables, groups of exceptions and lines of JSON have an exception and its place."""
    (found,) = reports_of(lines_of(0, 1.0, lines))
    assert (found.text, found.chain[0].place) == ("ValueError: bad", place)


def test_a_fault_that_a_later_line_names_is_shown() -> None:
    """Of NCCL's long messages, the line with the fault is the error; torch's head of a message is left out."""
    (found,) = reports_of(lines_of(0, 1.0, real.nccl_of_gpu("uncorrectable ECC error encountered")))
    assert found.text == "DistBackendError: Cuda failure 'CUDA error: uncorrectable ECC error encountered'"
    found = reports_of(lines_of(0, 1.0, real.watchdog_of(3, "CUDA error: an illegal memory access")))[0]
    assert found.text.startswith("Process group watchdog thread terminated with exception: CUDA error: an illegal")


def test_what_python_ignored_at_the_end_is_no_error() -> None:
    """Tracebacks of failed clean-up do not count, also if one follows the other."""
    assert reports_of(lines_of(0, 1.0, real.ignored())) == []


def test_errors_that_the_rank_survived_do_not_count() -> None:
    """An error after which a rank made more steps is not how it ended."""
    old = [line._replace(step=10) for line in lines_of(0, 1.0, texts.traceback("OSError: [Errno 28] No space left"))]
    later = [line._replace(step=90, number=50) for line in lines_of(0, 50.0, ["step 90"], stream="out")]
    found = first_error(ErrorEvidence({0: [*old, *later], 1: lines_of(1, 60.0, texts.traceback("ValueError: z"))}))
    assert found is not None
    assert found.ranks == (1,)


def test_clocks_that_are_not_known_well_enough_lower_the_confidence() -> None:
    """Two different errors that are nearer in time than the clocks are known are told apart by what they say only."""
    lines = {0: lines_of(0, 10.0, texts.traceback("ValueError: a")), 1: lines_of(1, 40.2, texts.gpu_memory(0), "b")}
    known = first_error(ErrorEvidence(lines, skews={"a": Skew(0.0, 0.001), "b": Skew(30.0, 0.001)}))
    rough = first_error(ErrorEvidence(lines, skews={"a": Skew(0.0, 0.5), "b": Skew(30.0, 0.5)}))
    assert known is not None
    assert rough is not None
    assert (known.ranks, known.confidence > 0.9) == ((0,), True)
    assert (rough.ranks, rough.confidence < 0.6) == ((1,), True)


def test_no_rank_is_named_if_every_error_is_a_consequence() -> None:
    """Ranks that all lost a peer, while none is silent, give no cause."""
    found = first_error(ErrorEvidence({rank: lines_of(rank, 5.0 + rank, GLOO) for rank in range(4)}, world_size=4))
    assert found is not None
    assert (found.ranks, found.kind, found.confidence < 0.3) == ((), "peer", True)
    assert found.summary.startswith("no rank is known as the cause")


def test_a_rank_that_all_others_waited_for_is_named() -> None:
    """A rank without a line is the cause if all others ran out of time."""
    lines = {rank: lines_of(rank, 600.0, texts.watchdog(rank)) for rank in (0, 1, 3)}
    found = first_error(ErrorEvidence(lines, world_size=4))
    assert found is not None
    assert (found.ranks, found.kind) == ((2,), "hang")


def test_exceptions_alone_are_enough() -> None:
    """Without consoles, the exceptions that the ranks reported decide."""
    event = {
        "rank": 3,
        "time": 5.0,
        "error": "RuntimeError: y",
        "traceback": "\n".join(texts.chained("KeyError: 1", "RuntimeError: y")),
    }
    ends = [EndedRank(rank, "a", "killed", "killed by SIGTERM", 6.0) for rank in range(3)]
    found = first_error(ErrorEvidence({}, ends, [event]))
    assert found is not None
    assert (found.rank, found.error, found.lines[-1]) == (3, "KeyError: 1", "RuntimeError: y")


def test_a_healthy_run_has_no_first_error() -> None:
    """Warnings and finished ranks are no error."""
    lines = {0: lines_of(0, 1.0, list(texts.WARNINGS)), 1: lines_of(1, 2.0, texts.caught())}
    ends = [EndedRank(0, "a", "finished"), EndedRank(1, "a", "finished")]
    assert first_error(ErrorEvidence(lines, ends)) is None
    assert first_error(ErrorEvidence()) is None


def test_the_choice_of_torchrun_is_read() -> None:
    """The rank that torchrun names as the root cause is found in its report."""
    assert launcher_choice(ErrorEvidence({-1: lines_of(-1, 1.0, texts.table("t.py", 5, 1, 1))})) == 5
    assert launcher_choice(ErrorEvidence({0: lines_of(0, 1.0, GLOO)})) is None


@pytest.mark.parametrize(
    ("ranks", "world", "text"),
    [([3], 4, "rank 3"), ([1, 2], 4, "ranks 1 and 2"), (list(range(9)), 99, "9 ranks"), ([0, 1], 2, "all 2 ranks")],
)
def test_ranks_in_words(ranks: list[int], world: int, text: str) -> None:
    """Ranks are listed if they are few."""
    assert ranks_text(ranks, world) == text


PIECES = (
    *texts.chained("KeyError: 1", "E: 2"),
    *GLOO,
    *texts.segfault(),
    *texts.worker_exception("A: b"),
    "",
    "50%|██ |",
)


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(string.printable, max_size=40)), max_size=60))
def test_any_text_is_read(lines: list[str]) -> None:
    """Cut, mixed and hostile tracebacks give reports inside the lines, never an exception."""
    for report in reports_of(lines_of(0, 1.0, lines)):
        assert 0 <= report.first <= report.last < len(lines)
        assert math.isfinite(report.time)
        assert report.chain


def test_a_line_of_a_rank_needs_no_prefix_to_be_read() -> None:
    """Prefixes of torch, torchrun, srun and Ray, and colours, do not hide an error."""
    for head in ("", "[rank12]: ", "[default3]:", "17: ", "(RayTrainWorker pid=77, ip=10.0.0.1) ", "\x1b[31m"):
        found = reports_of(lines_of(0, 1.0, [head + line for line in texts.traceback("ValueError: z")]))
        assert [report.text for report in found] == ["ValueError: z"], head


TERM = "SIGTERM in a SLURM job (preempted, cancelled or out of time)"


@pytest.mark.parametrize("others", [[], [EndedRank(2, "a", "failed", "exit code 1", 9.0)]])
def test_a_preempted_node_is_the_cause_and_no_crash(others: list[EndedRank]) -> None:
    """Ranks that the scheduler took away are named if the others only lost them, whatever code they exit with."""
    ends = [EndedRank(0, "b", "preempted", TERM, 5.0), EndedRank(1, "b", "preempted", TERM, 5.1), *others]
    lines = {rank: lines_of(rank, 7.0 + rank, GLOO) for rank in (3, 4, 5)}
    found = first_error(ErrorEvidence(lines, ends, world_size=6))
    assert found is not None
    assert (found.ranks, found.kind) == ((0, 1), "preempted")
    assert "preempted" in found.summary


def test_an_error_before_the_scheduler_ended_the_job_is_the_cause() -> None:
    """srun ends the other ranks with SIGTERM when one fails: their end came later and explains nothing."""
    ends = [EndedRank(0, "a", "failed", "exit code 1", 5.0), EndedRank(1, "b", "preempted", TERM, 5.3)]
    found = first_error(ErrorEvidence({}, ends))
    assert found is not None
    assert (found.ranks, found.kind) == ((0,), "exit")


def test_a_job_that_is_taken_away_as_a_whole_has_no_error_of_its_own() -> None:
    """All ranks preempted: nobody began it but the scheduler."""
    found = first_error(ErrorEvidence({}, [EndedRank(rank, "a", "preempted", TERM, 5.0) for rank in range(4)]))
    assert found is not None
    assert found.kind not in ("preempted", "crash", "killed", "lost")


def test_ranks_that_finished_while_the_others_went_on_left() -> None:
    """Where the only ranks without an error had finished, they left; nothing crashed on them."""
    ends = [EndedRank(3, "b", "finished", "", 5.0)]
    found = first_error(ErrorEvidence({rank: lines_of(rank, 9.0, GLOO) for rank in (0, 1, 2)}, ends, world_size=4))
    assert found is not None
    assert (found.ranks, found.kind) == ((3,), "left")
    assert "finished while the others went on" in found.summary


TRACE = ["Traceback (most recent call last):", '  File "/home/user/train.py", line 3, in step', "    read(row)"]


@pytest.mark.parametrize(
    "text",
    [
        *("struct.error: unpack requires a buffer of 4 bytes", "socket.gaierror: [Errno -2] Name or service not known"),
        *(
            "cv2.error: OpenCV(4.5) bad argument",
            "main.<locals>.Bad: local",
            "my_error: no capital letter",
            "zlib.error",
        ),
    ],
)
def test_an_exception_need_not_begin_with_a_capital_letter(text: str) -> None:
    """Classes such as `struct.error`, and those defined in a function, are named like all others."""
    found = first_error(ErrorEvidence({1: lines_of(1, 5.0, [*TRACE, text]), 0: lines_of(0, 4.9, GLOO)}))
    assert found is not None
    assert (found.rank, found.error) == (1, text)


def test_output_between_the_frames_is_no_exception() -> None:
    """A progress bar that is drawn into a traceback does not become its error."""
    lines = lines_of(1, 5.0, [*TRACE, "loss: 0.3", *TRACE[1:], "ValueError: bad"])
    found = first_error(ErrorEvidence({1: lines}))
    assert found is not None
    assert found.error == "ValueError: bad"


def uncaught(rank: int, time: float, lines: list[str]) -> dict[str, object]:
    """Return the event of an exception that ended a rank."""
    return {"rank": rank, "time": time, "error": lines[-1], "traceback": "\n".join(lines)}


CAUGHT, FATAL = [*TRACE, "OSError: cannot upload"], [*TRACE, "ValueError: bad batch"]


def test_an_error_that_was_only_logged_is_not_what_ended_its_rank() -> None:
    """A traceback of logging.exception some seconds before the uncaught exception is not the cause."""
    lines = {1: [*lines_of(1, 5.0, CAUGHT), *lines_of(1, 9.0, FATAL)], 0: lines_of(0, 9.1, GLOO)}
    found = first_error(ErrorEvidence(lines, errors=[uncaught(1, 9.0, FATAL), uncaught(0, 9.1, GLOO)]))
    assert found is not None
    assert (found.rank, found.error) == (1, "ValueError: bad batch")


@pytest.mark.parametrize("is_told", [True, False], ids=["lost its peer", "ended by the launcher"])
def test_a_healthy_rank_that_logged_an_error_is_not_the_first(is_told) -> None:
    """A rank that caught an error, and failed or was ended because of another one, is not blamed."""
    lines = {0: [*lines_of(0, 5.0, CAUGHT), *(lines_of(0, 9.1, GLOO) if is_told else [])], 1: lines_of(1, 9.0, FATAL)}
    ends = [
        EndedRank(0, "a", "killed", "SIGTERM, after rank 1 failed", 9.5),
        EndedRank(1, "a", "failed", FATAL[-1], 9.1),
    ]
    events = [uncaught(1, 9.0, FATAL), *([uncaught(0, 9.1, GLOO)] if is_told else [])]
    found = first_error(ErrorEvidence(lines, ends, events))
    assert found is not None
    assert (found.ranks, found.error) == ((1,), "ValueError: bad batch")


def test_an_exit_is_not_said_to_follow_from_what_it_began() -> None:
    """The process of a rank that called sys.exit may end after the ranks that lost it."""
    ends = [
        EndedRank(0, "a", "failed", GLOO[-1], 9.0),
        EndedRank(1, "a", "failed", "exit code 1, after rank 0 failed", 9.6),
    ]
    found = first_error(ErrorEvidence({0: lines_of(0, 8.9, GLOO)}, ends, [uncaught(0, 8.9, GLOO)]))
    assert found is not None
    assert (found.summary, found.error) == ("rank 1 on a: failed: exit code 1", "failed: exit code 1")
    assert "ended first" not in found.why


def test_of_two_ranks_the_one_that_finished_early_is_named() -> None:
    """A rank that ended well while the other one needed it explains why that one lost its peer."""
    ends = [EndedRank(0, "a", "failed", GLOO[-1], 9.0), EndedRank(1, "a", "finished", "", 8.9)]
    found = first_error(ErrorEvidence({0: lines_of(0, 8.9, GLOO)}, ends))
    assert found is not None
    assert (found.kind, found.summary) == ("left", "rank 1 on a finished while the others went on")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.", "gpu_fault"),
        ("NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.", "gpu_fault"),
        ("CUBLAS_STATUS_NOT_INITIALIZED", "gpu_fault"),
        ("ibv_poll_cq failed", "peer"),
    ],
)
def test_known_lines_are_found_without_a_usual_word(text: str, kind: str) -> None:
    """The quick look at a line does not pass over what the table of known texts has."""
    assert [one.kind for one in reports_of(lines_of(0, 1.0, [text]))] == [kind]
