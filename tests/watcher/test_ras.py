"""Asking NCCL's service, with a stand-in for its program: when it is asked, how, and what becomes of its answer."""

from __future__ import annotations

import json

import pytest

from stepscope.watcher import ras
from stepscope.watcher.ras import RasQuestion
from tests.integration.processes import until

pytestmark = pytest.mark.processes
REPORT = {"nccl_version": "2.28.3", "communicators": []}


def question(folder, body, proc="/proc", **environ):
    """Return a question to a program that does `body`; it writes its arguments into a file."""
    program = folder / "ncclras"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{body}\n')
    program.chmod(0o755)
    return RasQuestion({"PATH": f"{folder}:/usr/bin:/bin", **environ}, str(proc))


def answered(asked):
    return until(lambda: asked.poll(0.0), "the report")


def test_the_report_is_an_event(tmp_path):
    """As JSON, from the address that the job uses, and once."""
    asked = question(tmp_path, f"echo '{json.dumps(REPORT)}'", NCCL_RAS_ADDR="[::1]:28029")
    asked.ask([], 0.0)
    asked.ask([], 0.0)
    assert answered(asked) == {"kind": "nccl_ras", "report": REPORT}
    assert (tmp_path / "asked").read_text() == "-h ::1 -p 28029 -t 5 -f json\n"
    assert asked.poll(0.0) is None


def test_an_old_program_is_asked_for_text(tmp_path):
    """Versions before 2.28 refuse the option."""
    body = 'case "$*" in *json*) exit 1;; esac; echo "Rank 3 is missing"'
    asked = question(tmp_path, body, NCCL_RAS_ADDR="localhost:28028")
    asked.ask([], 0.0)
    assert answered(asked)["kind"] == "nccl_ras"
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


def test_a_program_that_hangs_is_killed(tmp_path):
    """The loop of the watcher never waits for it."""
    asked = question(tmp_path, "exec sleep 600", NCCL_RAS_ADDR="localhost:28028")
    asked.ask([], 0.0)
    assert asked.poll(1.0) is None
    assert asked.poll(11.0)["why"] == "it did not answer within 10 s"
    assert not asked._program.open


@pytest.mark.parametrize(("body", "why"), [("echo nonsense", "could not be read"), ("cat big", "more than")])
def test_an_answer_that_is_of_no_use_is_told(tmp_path, monkeypatch, body, why):
    """Nonsense, or a report that is too large for an event."""
    monkeypatch.setattr(ras, "MOST_REPORT", 20)
    (tmp_path / "big").write_text(json.dumps(REPORT))
    asked = question(tmp_path, body.replace("big", f"{tmp_path}/big"), NCCL_RAS_ADDR="localhost:28028")
    asked.ask([], 0.0)
    assert why in answered(asked)["why"]


def test_only_processes_with_nccl_are_a_reason_to_ask(tmp_path):
    """A gloo job has no such service: nothing is started."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text("7f00-7f01 r-xp 0 0:0 1 /x/libgloo.so\n")
    asked = question(tmp_path, "echo '{}'", proc=tmp_path)
    asked.ask([7, 8], 0.0)
    assert not asked._program.open
    (tmp_path / "7" / "maps").write_text("7f00-7f01 r-xp 0 0:0 1 /x/nvidia/nccl/lib/libnccl.so.2\n")
    asked.ask([7], 0.0)
    assert asked._program.open
    asked.close()


def test_without_the_program_nothing_is_asked(tmp_path):
    """Also if the file is there and cannot be started."""
    asked = RasQuestion({"PATH": str(tmp_path), "NCCL_RAS_ADDR": "localhost:28028"})
    asked.ask([], 0.0)
    assert asked.poll(0.0) is None
    (tmp_path / "ncclras").write_bytes(b"\x7fELF no program")
    (tmp_path / "ncclras").chmod(0o755)
    asked.ask([], 0.0)
    assert not asked._program.open
