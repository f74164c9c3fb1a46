"""The way of a run's rows to one sink: what to send next, when to try again, and what was confirmed.

A lane does one thing per `turn`, and waits for nothing but the sink's call. It is made again after a crash, and goes on
from the state on disk.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.errors import UsageError, in_words
from stepscope.exporters.sinks.address import shown
from stepscope.exporters.sinks.batch_queue import BatchQueue
from stepscope.exporters.sinks.refused import RefusedRows
from stepscope.exporters.sinks.sink import (
    RunFacts,
    SinkBatch,
    SinkDeniesError,
    SinkDownError,
    SinkError,
    SinkRefusesError,
    SinkSlowError,
)
from stepscope.exporters.sinks.spool import Frontier, Portion, Spool, add_span, count_behind, spans_from, spans_to
from stepscope.store.sinks import DENIED, DONE, SENDING, WAITING, load_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.sink import RunNews, Sink
    from stepscope.store.layout import RunFolder, Writer

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds to wait after the first failure, and at most; doubled after each failure."""
LONGEST_ASKED = 3600.0
"""Seconds of a Retry-After that are honoured at most."""
DENIED_WAIT = 60.0
"""Seconds until a sink that takes nothing of ours is asked again: a setting has to change first."""
LATE = 30.0
"""Seconds that a row may be old before newer rows no longer wait for it."""
JUMP_EVERY = 300.0
"""Seconds between two jumps to the newest rows, if a sink is too slow even for those."""
COUNT_EVERY = 2.0
"""Seconds between two counts of the rows that a sink does not have yet."""
LONG_REST = 5.0
"""Seconds of rest between two batches that the end of the run cuts short."""
SYNC_EVERY = 5.0
"""Seconds between two states that survive a power loss."""
BACK = 1.0
"""Seconds that a clock must have been set back for all that is due later to be due now."""
UNSENT = 500
"""Points that are read from the run for a sink that cannot be used, to say how far it is behind."""
EMPTY_PORTIONS = 100
"""Portions without a wanted metric that one turn passes over."""


class SentRun(NamedTuple):
    """What a lane has to know about its run."""

    folder: RunFolder
    node: str
    """The node whose rows are sent."""
    is_ours: Callable[[Writer], bool]
    facts: Callable[[], RunFacts]
    news: Callable[[Mapping[str, Any], Mapping[str, float]], tuple[RunNews, dict[str, Any]]]
    """Return what is new since the last report to a sink, given the last values, and what the sink knows after it."""
    is_over: Callable[[], bool]
    """Whether no more rows will come."""


class SinkLane:
    """One sink of one node of a run."""

    def __init__(
        self,
        address: SinkAddress,
        make: Callable[[], Sink],
        run: SentRun,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Go on where the state on disk says; connect to nothing yet."""
        self.address, self._make, self._run, self._clock, self._jitter = address, make, run, clock, jitter
        self.state = load_sink(run.folder, address.key, run.node)
        self.state.name, self.state.kind = address.name, address.scheme.partition("+")[0]
        self.state.address = shown(address.url)
        # What an earlier process met may have changed since: this one has not asked yet.
        self.state.state, self.state.why, self.state.since = WAITING, "", clock()
        self._spans = spans_from(self.state.sent)
        self._sink: Sink | None = None
        self._is_open, self._is_first = False, True
        self._backlog = self._spool()
        self._live: Spool | None = None
        """Reads the newest rows while the backlog is late."""
        self._was_live = False
        self._jumped = 0.0
        self._frontier = Frontier(run.folder, run.is_ours)
        self._portion: Portion | None = None
        self._queue = BatchQueue()
        self._refused = RefusedRows(run.folder, self.state, self._problem, clock)
        self._latest: dict[str, float] = {}
        """The last value of each metric, for sinks that take no rows."""
        self._wait = FIRST_WAIT
        self._rested: float | None = None
        """When (unix seconds) there was nothing left to send; None while rows wait."""
        self.due = 0.0
        """When (unix seconds) the next turn is due."""
        self._report_due = self._count_due = self._sync_due = 0.0
        self._seen = 0.0
        """When (unix seconds) the last turn was, to notice a clock that was set back."""
        self.is_done = False
        """Whether the run has ended and the sink has everything."""
        self.problems: list[str] = []
        """Problems of our own, such as a full disk, for the log."""

    def _spool(self, after: int | None = None) -> Spool:
        return Spool(self._run.folder, self._run.is_ours, self._spans, self.address.wants, after=after)

    def _problem(self, text: str) -> None:
        self.problems.append(text)

    def turn(self) -> None:
        """Do what is due: at most one call of the sink for rows, and one for news."""
        now = self._clock()
        if now < self._seen - BACK:
            self.due = self._jumped = self._report_due = self._count_due = self._sync_due = 0.0
        self._seen = now
        if self.is_done:
            return
        is_resting = self._rested is not None and self.state.state == SENDING and self.due - now > LONG_REST
        if now < self.due and not (is_resting and self._run.is_over()):
            self._count(now)
            return
        if not self.state.time:
            self._save()  # a sink that takes long to answer is shown from the start
        try:
            self._work(now)
        except SinkDownError as error:
            self._back_off(str(error), error.retry_after)
        except (SinkDeniesError, UsageError) as error:
            self._denied(str(error))
        except OSError as error:
            self._back_off(f"the run cannot be read: {in_words(error)}")
        self._count(self._clock())

    def fail(self, error: Exception) -> None:
        """Note a fault of our own in a turn; the same rows are tried again later."""
        self.problems.append(f"cannot send to {self.address.name}: {in_words(error)}; trying again")
        self._back_off(in_words(error))
        self._let_go()

    def _work(self, now: float) -> None:
        is_over = self._run.is_over()  # asked first: then nothing can come after an empty read
        if not self._queue:
            self._refill(now)
        if self._queue:
            self._send(self._opened())
        elif is_over and self._portion is None:
            self._finish()
            return
        if self._clock() >= self._report_due:
            self._report(self._opened())

    def _refill(self, now: float) -> None:
        """Take the next rows, and pass over those that nobody wants."""
        for _ in range(EMPTY_PORTIONS):
            portion = self._take(now) if self._portion is None else self._portion
            if portion is None:
                self._keep(SENDING if self._is_open else self.state.state)
                self.state.behind_rows, self.state.behind_seconds = 0, 0.0
                self.state.interval = self.address.interval or self._new_sink().interval
                self._rested, self.due = now, now + self.state.interval
                return
            self._portion, self._rested = portion, None
            if len(portion.points) and self._new_sink().takes_rows:
                self._queue.add(SinkBatch(portion.points))
                return
            self._latest.update(_last_values(portion))
            self._confirm()

    def _take(self, now: float) -> Portion | None:
        """Return the next rows: the oldest first; if they are late, in turn with the newest."""
        sink = self._new_sink()
        most = int(min(sink.most_points, self._queue.most))
        if self._live is not None and not self._was_live:
            self._was_live = True
            portion = self._live.take(most)
            if portion is not None:
                self._jump(now, portion)
                return portion
        self._was_live = False
        portion = self._backlog.take(most)
        if portion is None and self._live is not None:
            self._live.close()
            self._live = None
            for place, pairs in list(self._spans.items()):  # what is missing between two spans was never on disk
                add_span(self._spans, place, 0, pairs[-1][1])
        elif portion is not None and self._live is None and not sink.is_ordered:
            self._jump(now, portion)
        return portion

    def _jump(self, now: float, portion: Portion) -> None:
        """Let a second reader begin with the newest rows if these are late; the gap is left to the first."""
        is_late = bool(len(portion.points)) and int(portion.points.time.min()) / 1e6 < now - LATE
        if is_late and now - self._jumped >= JUMP_EVERY and not self._run.is_over():
            self._jumped = now
            if self._live is not None:
                self._live.close()
            self._live = self._spool(after=round((now - LATE) * 1e6))

    def _new_sink(self) -> Sink:
        if self._sink is None:
            self._sink = self._make()
        return self._sink

    def _opened(self) -> Sink:
        """Return the sink with its run; the facts that it returns are kept before the first row is sent."""
        sink = self._new_sink()
        if not self._is_open:
            run = self._run.facts()
            known = sink.open(run, dict(self.state.known))
            self._is_open, self._is_first = True, run.is_first
            if known != self.state.known:
                self.state.known = {str(key): str(value) for key, value in known.items()}
                self._save(sync=True)
            self._report_due = 0.0
        return sink

    def _send(self, sink: Sink) -> None:
        """Send the first batch of the queue."""
        batch, began = self._queue.first(divides_rows=sink.divides_rows), self._clock()
        try:
            receipt = sink.send(batch)
        except SinkSlowError:
            self._queue.was_late(len(batch))
            raise
        except SinkRefusesError as error:
            self._refuse(sink, batch, str(error))
        else:
            self._queue.pop()
            self._queue.was_taken(len(batch), self._clock() - began)
            self._wait, self.due = FIRST_WAIT, 0.0
            self._refused.set_aside()
            self._refused.left_out(batch, receipt)
            self.state.merged_points += receipt.merged
            self._keep(SENDING)
        if not self._queue:
            self._refused.set_aside()
            self._confirm()

    def _refuse(self, sink: Sink, batch: SinkBatch, why: str) -> None:
        """Divide a refused batch; a row that cannot be divided is a suspect."""
        if self._queue.divide(divides_rows=sink.divides_rows):
            return
        self._queue.pop()
        try:
            self._refused.suspect(batch, why)
        except SinkDeniesError:
            self._queue.put_back(self._refused.returned())
            raise

    def _confirm(self) -> None:
        """Note that the current portion is sent."""
        portion, self._portion = self._portion, None
        if portion is None:
            return
        for place, (first, last) in portion.passed.items():
            add_span(self._spans, place, first, last)
        self.state.sent = spans_to(self._spans)
        refused = self._refused.counted()
        self.state.refused_rows += refused
        self.state.sent_rows += max(0, portion.rows - refused)
        now = self._clock()
        self._save(sync=now >= self._sync_due)

    def _report(self, sink: Sink) -> None:
        """Tell the sink what is new, if anything is."""
        news, reported = self._run.news(self.state.reported, self._latest)
        if reported != self.state.reported and self._is_first:
            try:
                sink.report(news)
            except SinkRefusesError as error:  # saying it again would not help; the rows go on
                self.problems.append(
                    f"cannot report the run's state to {self.address.name}: {error}; it gets the rows only"
                )
            self.state.reported = reported
            self._save()
        self._report_due = self._clock() + sink.report_every

    def _finish(self) -> None:
        """Tell the sink how the run ended: it has all rows."""
        sink = self._opened()
        self._report(sink)
        self._sink, self._is_open = None, False
        try:
            sink.close()
        except SinkError:
            self.state.reported.pop("digest", None)  # the next sink must know again that the run has ended
            raise
        self._keep(DONE)
        self.state.behind_rows, self.state.behind_seconds = 0, 0.0
        self._save(sync=True)
        self.is_done = True

    def _back_off(self, why: str, asked: float | None = None) -> None:
        """Wait before the next try: longer each time, and never as long as others do."""
        wait = self._wait * (0.5 + 0.5 * self._jitter())
        self._wait = min(LONGEST_WAIT, self._wait * 2)
        self.due = self._clock() + max(wait, min(asked or 0.0, LONGEST_ASKED))
        self._keep(WAITING, why)

    def _denied(self, why: str) -> None:
        """Wait for a changed setting; secrets are read again after that."""
        self._let_go()
        if self._portion is None:  # it was denied before it was asked for its size of a portion
            self._portion = self._backlog.take(UNSENT)
        self.due = self._clock() + DENIED_WAIT * (0.5 + 0.5 * self._jitter())
        self._keep(DENIED, why)

    def _let_go(self) -> None:
        sink, self._sink, self._is_open = self._sink, None, False
        if sink is not None:
            try:
                sink.close()
            except SinkError as error:
                self.problems.append(f"cannot close {self.address.name}: {error}; going on")

    def _keep(self, state: str, why: str = "") -> None:
        """Set the state of the sink, and save a change."""
        if (state, why) != (self.state.state, self.state.why):
            if state != self.state.state:
                self.state.since = self._clock()
            self.state.state, self.state.why = state, why[:500]
            self._save()

    def _count(self, now: float) -> None:
        """Count the rows that the sink does not have yet."""
        has_waited = self._rested is not None and now - self._rested > COUNT_EVERY
        if now < self._count_due or not (has_waited or self._portion):
            return
        self._count_due = now + COUNT_EVERY
        first = self._portion.firsts() if self._portion else {}
        oldest = self._portion.oldest() if self._portion else self._rested  # what came in a rest cannot be older
        try:
            self.state.behind_rows = count_behind(self._frontier.newest(), self._spans, first)
        except OSError as error:
            self.problems.append(f"cannot count the rows for {self.address.name}: {error}; going on")
            return
        self.state.behind_seconds = max(0.0, now - oldest) if oldest is not None and self.state.behind_rows else 0.0
        self._save()

    def _save(self, *, sync: bool = False) -> None:
        """Save the state; if that fails, rows are sent anyway, and after a crash sent again."""
        self.state.time = self._clock()
        if sync:
            self._sync_due = self.state.time + SYNC_EVERY
        try:
            self.state.save(self._run.folder, sync=sync)
        except OSError as error:
            self.problems.append(f"cannot note what {self.address.name} has: {error}; going on")

    def close(self) -> None:
        """Stop; what was not confirmed is sent by the next lane of this sink."""
        self._let_go()
        self._save(sync=True)
        for reader in (self._backlog, self._live, self._frontier):
            if reader is not None:
                reader.close()


def _last_values(portion: Portion) -> dict[str, float]:
    """Return the last value of each metric of rank 0 and its machine."""
    points = portion.points
    values = zip(points.rank.tolist(), points.name.tolist(), points.value.tolist(), strict=True)
    return {points.names[code]: value for rank, code, value in values if rank in {0, -1}}
