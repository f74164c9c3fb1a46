"""The evidence of a first error, collected from a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import stepscope
from bench.drawn_console import printed, write_console
from bench.drawn_machine import HOST
from bench.drawn_runs import START, sick, write
from stepscope.core.console_line import ConsoleLine
from stepscope.sources import first_error

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_the_others_print_later_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank that failed first is found, however many lines the others print until they give up."""
    monkeypatch.setattr(first_error, "MOST_LINES", 400)
    drawn = sick("ill", steps=60)
    drawn.state, drawn.cause, drawn.events = "failed", "exit code 1", []
    lines = printed(START / 1e6, 0.25, 60, 4, HOST, guilty=3)
    later = max(line.time for line in lines)
    numbers = range(1000, 2000)
    lines += [ConsoleLine(later + at / 1e3, 1, 0, HOST, at, "err", f"frame #{at}: c10d::Watchdog") for at in numbers]
    path = write(tmp_path / "runs" / "demo" / "20261118-100000-dead", drawn)
    write_console(path, lines)
    found = first_error.first_error_of(stepscope.open(path))
    assert found is not None
    assert (found.rank, found.error) == (3, "KeyError: 'tokens'")
