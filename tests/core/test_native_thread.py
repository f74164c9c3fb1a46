"""The threads that we start in the user's process."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading

import pytest

from stepscope.core.native_thread import start_native_thread, start_without_signals
from stepscope.core.spawn import SpawnError


def test_a_native_thread_is_seen_by_nobody(monkeypatch):
    """It blocks every signal that can be blocked, `threading` does not list it, and only its newest name is needed."""
    monkeypatch.delattr(threading, "_start_new_thread", raising=False)  # Python 3.13 has it no more
    found, is_over = [], threading.Event()

    def look():
        found.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        with open("/proc/thread-self/comm", encoding="ascii") as file:
            found.append(file.read())
        found.append(threading.get_ident() in threading._active)
        is_over.set()

    start_native_thread(look, "a-name-with-more-than-15")
    assert is_over.wait(60)
    assert found == [signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}, "a-name-with-mor\n", False]


def test_replaced_threads_are_refused(monkeypatch):
    """Under gevent a thread that waits in the kernel would stop all others."""
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: os.abort())
    with pytest.raises(SpawnError, match="replaced threads"):
        start_native_thread(os.abort, "never")


SIGNALS = """
import os, signal
from stepscope.core.native_thread import start_native_thread, start_without_signals

for _ in range(200):
    start_native_thread(lambda: None, "short")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.sigwait([signal.SIGUSR1])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
"""


def test_a_native_thread_takes_no_signal_from_its_first_moment():
    """A signal that the program waits for right after the start of the thread ends no process."""
    assert subprocess.run([sys.executable, "-c", SIGNALS], check=False, timeout=60).returncode == 0


def test_a_plain_thread_can_be_started_without_signals():
    """The thread blocks them, and the one that starts it does not."""
    before, found = signal.pthread_sigmask(signal.SIG_BLOCK, ()), []
    thread = threading.Thread(target=lambda: found.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    start_without_signals(thread)
    thread.join(60)
    assert found == [signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
