"""What ranks print is kept, and nothing changes for the program: real programs, pipes and terminals."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import struct
import subprocess
import termios
import textwrap
import time
from fcntl import ioctl
from pathlib import Path

import pytest

import stepscope
from stepscope.store.console import ConsoleQuery, read_console
from stepscope.store.layout import RunFolder
from tests.faults import shim
from tests.integration.processes import kill, of_module, until

RUN = ["-m", "stepscope", "run"]
KEEPER = "stepscope.watcher.console_keeper"


def folders():
    """Return the folders of all runs."""
    return [info.path for info in stepscope.runs()]


def lines(**query):
    """Return the lines of the one run."""
    (path,) = folders()
    return read_console(RunFolder(Path(path)), ConsoleQuery(**query)).lines


def texts(**query):
    """Return the texts of the lines of the one run."""
    return [line.text for line in lines(**query)]


def keepers(bench):
    """Return the pids of the keepers of this test."""
    return of_module(KEEPER, *bench.roots)


class Screen:
    """A terminal, with a program on it whose session has it as its controlling terminal."""

    def __init__(self, bench, code, *arguments, interpreter=RUN, **options):
        """Start a script on a terminal of 24 rows and 80 columns."""
        self.master, slave = os.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        ends = {"stdin": slave, "stdout": slave, "stderr": slave, **options}
        self.trainer = bench.start(code, *arguments, interpreter=interpreter, prefix=("setsid", "--ctty"), **ends)
        os.close(slave)
        self.shown = b""

    def read(self, what, seconds=60.0):
        """Return everything shown until `what`, or until the program has ended if that is None."""
        end = time.monotonic() + seconds
        while what is None or what not in self.shown:
            assert time.monotonic() < end, f"{what!r} is not in {self.shown!r}"
            if not select.select([self.master], [], [], 0.1)[0]:
                if what is None and self.trainer.process.poll() is not None:
                    break
                continue
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:
                break
        return self.shown

    def type(self, data):
        """Press keys."""
        os.write(self.master, data)

    def end(self):
        """Return everything shown, and the exit code."""
        code = None
        with contextlib.suppress(AssertionError):
            self.read(None)
        code = self.trainer.process.wait(60)
        os.close(self.master)
        return self.shown.decode(), code


TALK = """
    import ctypes, os, subprocess, sys
    print("print", flush=True)
    os.write(1, b"os.write\\n")
    libc = ctypes.CDLL(None)
    libc.printf(b"printf\\n"); libc.fflush(None)
    subprocess.run(["echo", "child"])
    print("é \\x1b[31mred\\x1b[0m", flush=True)
    os.write(2, b"bad \\xff byte\\n")
    for at in range(5):
        sys.stderr.write(f"\\r{at * 25}%"); sys.stderr.flush()
    sys.stderr.write("\\ndone"); sys.stderr.flush()
    sys.exit(3)
"""


def test_everything_printed_is_kept_and_handed_on(bench):
    """Python, C, raw writes and child processes: the pipe gets every byte, the run every line."""
    plain = bench.run(TALK, errors="backslashreplace")
    run = bench.run(TALK, errors="backslashreplace", interpreter=RUN)
    assert (run.out, run.process.returncode) == (plain.out, 3)
    assert run.err.startswith(plain.err)
    said = [line.text for line in lines() if line.stream == "out"]
    assert said == ["print", "os.write", "printf", "child", "é \x1b[31mred\x1b[0m"]
    assert [line.text for line in lines() if line.stream == "err"] == ["bad \\xff byte", "100%", "done"]
    assert lines()[-1].is_open
    until(lambda: not keepers(bench), "the end of the keeper")


TERMINAL = """
    import os, shutil, sys
    print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout.line_buffering)
    print(tuple(os.get_terminal_size(1)), os.get_terminal_size(2).columns)
    for number in range(3):
        print("out", number)
        print("err", number, file=sys.stderr)
    sys.stdout.write("name? ")
    print("hello", input())
    sys.exit(4)
"""


def test_a_terminal_stays_a_terminal(bench):
    """On a terminal the program sees one of the same size, its streams stay in order, and it can ask for input."""
    seen = []
    for interpreter in ((), RUN):
        screen = Screen(bench, TERMINAL, interpreter=interpreter)
        screen.read(b"name? ")
        screen.type(b"Ada\n")
        shown, code = screen.end()
        seen.append((shown.partition("hello Ada")[0], code))
    assert seen[0] == seen[1]
    assert seen[1][1] == 4
    assert "hello Ada" in texts()[-1]


RESIZED = """
    import os, sys, time
    print("ready", flush=True)
    while os.get_terminal_size(1).columns == 80:
        time.sleep(0.02)
    print("columns", os.get_terminal_size(1).columns)
"""


def test_a_terminal_that_is_resized_is_resized_for_the_program(bench):
    """The program's terminal follows the size of the real one."""
    screen = Screen(bench, RESIZED)
    screen.read(b"ready")
    ioctl(screen.master, termios.TIOCSWINSZ, struct.pack("4H", 24, 132, 0, 0))
    screen.read(b"columns 132")
    assert screen.end()[1] == 0


HANDLED = """
    import os, signal, time
    widths = []
    signal.signal(signal.SIGWINCH, lambda *_: widths.append(os.get_terminal_size(1).columns))
    print("ready", flush=True)
    while widths[-1:] != [132]:
        time.sleep(0.02)
    print("seen", widths[-1])
"""


def test_a_program_that_is_told_of_a_new_size_finds_it(bench):
    """A handler of SIGWINCH sees the new size at last, though ours follows the real terminal a moment later."""
    screen = Screen(bench, HANDLED)
    screen.read(b"ready")
    ioctl(screen.master, termios.TIOCSWINSZ, struct.pack("4H", 24, 132, 0, 0))
    screen.read(b"seen 132")
    assert screen.end()[1] == 0


WAIT = """
    import time
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("terminal", ["dumb", "xterm"])
def test_ctrl_c_reaches_the_program_and_its_traceback_the_run(bench, terminal):
    """Ctrl-C interrupts the program as without us, also if its card is shown; what it prints then is shown and kept."""
    screen = Screen(bench, WAIT, environ={"TERM": terminal})
    screen.read(b"ready")
    screen.type(b"\x03")
    shown, code = screen.end()
    assert code == -signal.SIGINT, shown
    assert "KeyboardInterrupt" in shown
    assert "KeyboardInterrupt" in texts()
    assert ("training" in shown) == (terminal == "xterm")


AWAITING = """
    import os, signal, threading
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for _ in range(100):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
    print("alone:", threading.active_count() == 1, threading.excepthook is threading.__excepthook__)
"""


def test_a_signal_that_the_program_waits_for_is_its_own(bench):
    """No thread of ours takes a signal, which would end the program; `threading` knows of none."""
    assert bench.run(AWAITING, interpreter=RUN).out == "alone: True True\n"


ODD_STREAM = """
    import sys, stepscope
    class Stream:
        def write(self, text): return len(text)
        def flush(self): raise RuntimeError("not now")
    run = stepscope.init()
    before, sys.stdout = sys.stdout, Stream()
    run.finish()
    sys.stdout = before
    print("on it goes")
"""


def test_a_stream_that_cannot_be_flushed_is_left_alone(bench):
    """The program may have put any object in the place of its streams: the end of the run does not raise."""
    assert bench.run(ODD_STREAM, environ={"STEPSCOPE_RECORDER__CONSOLE": "on"}).out == "on it goes\n"


@pytest.mark.parametrize("how", ["os._exit(5)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_a_program_that_dies_loses_no_line(bench, how):
    """The keeper outlives a program that ends without a goodbye."""
    code = f"import os, sys\nfor i in range(1000): os.write(1, b'line %d\\n' % i)\nos.write(1, b'half'); {how}"
    plain, run = bench.run(code), bench.run(code, interpreter=RUN)
    assert run.process.returncode == plain.process.returncode
    assert run.out == plain.out
    until(lambda: texts(last=1) == ["half"], "the last line")
    assert len(texts()) == 1001


PRINTS = """
    import os, sys, time
    for number in range(100_000):
        os.write(1, b"line %d\\n" % number)
        if os.path.exists("stop"):
            break
        time.sleep(0.001)
    os.write(1, b"last\\n")
"""


def test_a_keeper_that_is_killed_does_not_disturb_the_program(bench):
    """Without its keeper the program prints where it did before: no error, no pause, no byte lost or doubled."""
    run = bench.start(PRINTS, interpreter=RUN)
    (keeper,) = until(lambda: keepers(bench), "the keeper")
    until(lambda: folders() and texts(last=1), "a line in the run")
    kill(keeper)
    time.sleep(0.3)
    (bench.folder / "stop").touch()
    assert run.wait() == 0, run.err
    printed = run.out.splitlines()
    assert printed[-1] == "last"
    numbers = [int(line.split()[1]) for line in printed[:-1] if re.fullmatch(r"line \d+", line)]
    assert len(numbers) >= len(printed) - 200  # what the keeper had read and not handed on went with it
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_signals_that_a_scheduler_sends_to_the_whole_job_end_no_keeper(bench, number):
    """Before a job ends, Slurm signals all its processes: what the program prints then is kept."""
    code = f"import signal\nsignal.sigwait([{number:d}])\nprint('saved', flush=True)"
    start = f"import signal\nsignal.pthread_sigmask(0, [{number:d}])\nprint('ready', flush=True)\n{code}"
    run = bench.start(start, interpreter=RUN)
    assert run.line() == "ready"
    until(lambda: folders() and texts() == ["ready"], "the line in the run")
    for pid in (*keepers(bench), run.pid):
        kill(pid, number)
    assert (run.wait(), run.out) == (0, "saved\n"), run.err
    until(lambda: texts() == ["ready", "saved"], "the last line in the run")


def test_a_keeper_that_is_stopped_does_not_stop_the_program(bench):
    """A signal may stop the keeper by mistake: it is continued before the program has to wait for long."""
    code = "import os\nprint('ready', flush=True)\ninput()\nfor i in range(40): os.write(1, b'x' * 65535 + b'\\n')"
    run = bench.start(code, interpreter=RUN, stdin=subprocess.PIPE)
    assert run.line() == "ready"
    (keeper,) = until(lambda: keepers(bench), "the keeper")
    kill(keeper, signal.SIGSTOP)
    try:
        run.out, run.err = run.process.communicate("go\n", timeout=60)
    finally:
        kill(keeper, signal.SIGCONT)
    assert run.process.returncode == 0
    assert len(run.out) == 40 << 16


def test_killing_everything_keeps_what_was_printed_before(bench):
    """SIGKILL of trainer, keeper and watcher costs at most what was still in the pipe."""
    run = bench.start(PRINTS, interpreter=RUN)
    said = [run.line() for _ in range(200)]
    until(lambda: folders() and len(texts()) >= 200, "lines in the run")
    for pid in (run.pid, *keepers(bench)):
        kill(pid)
    run.wait()
    assert texts()[:200] == said


def test_output_of_a_process_that_outlives_the_program_is_kept(bench):
    """The keeper stays while somebody can print, and goes then."""
    code = """
        import os, time
        if os.fork() == 0:
            time.sleep(1.0); os.write(1, b"from the child\\n"); os._exit(0)
        os.write(1, b"from the parent\\n"); os._exit(0)
    """
    assert bench.run(code, interpreter=RUN).out == "from the parent\nfrom the child\n"
    until(lambda: texts()[-1:] == ["from the child"], "the child's line")
    until(lambda: not keepers(bench), "the end of the keeper")


def test_a_reader_that_goes_away_is_noticed_as_before(bench):
    """`stepscope run … | head -1` ends a program that prints on and on, as it does without us."""
    code = "import itertools\nfor i in itertools.count(): print('line', i, flush=True)"
    run = bench.start(code, interpreter=RUN)
    assert run.line() == "line 0"
    run.process.stdout.close()
    run.process.stdout = None
    assert run.wait(60) != 0
    assert "BrokenPipeError" in run.err


def test_a_full_disk_behind_the_output_is_told(bench):
    """Where the output cannot be written, the program goes on, its lines are in the run, and the log of it says why."""
    with Path("/dev/full").open("w") as full:
        run = bench.start("print('kept')", interpreter=RUN, stdout=full)
        assert run.wait() == 0, run.err
    until(lambda: texts() == ["kept"], "the line in the run")
    (path,) = folders()
    until(lambda: "No space left on device" in Path(path, "watcher.log").read_text(), "the reason")


def test_without_the_setting_nothing_is_captured(bench):
    """`recorder.console` off means no keeper; on means one with `init` alone, until the run ends."""
    code = "import stepscope\nrun = stepscope.init()\nprint('inside', flush=True)\nrun.finish()\nprint('after')"
    assert bench.run(code, environ={"STEPSCOPE_RECORDER__CONSOLE": "on"}).out == "inside\nafter\n"
    assert texts() == ["inside"]
    bench.run("print(1)", interpreter=RUN, environ={"STEPSCOPE_RECORDER__CONSOLE": "off"}, name="other.py")
    assert sum(Path(path, "console").exists() for path in folders()) == 1


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_files_of_ours_do_not_take_the_place_of_closed_streams(bench, closed):
    """A library that prints to a closed standard output must not write into a file of Stepscope."""
    code = """
        import os, sys
        mine = [os.path.exists(f"/proc/self/fd/{number}") for number in map(int, sys.argv[2:])]
        with open(sys.argv[1], "w") as file:
            print(mine, file=file)
    """
    numbers = [str(number) for number in closed]
    script, told = bench.folder / "told.py", bench.folder / "told"
    script.write_text(textwrap.dedent(code))
    words = [*RUN, str(script), str(told), *numbers]
    start = f"import os, sys; [os.close(n) for n in {closed}]; os.execv(sys.executable, [sys.executable, *{words}])"
    assert bench.start("", interpreter=["-c", start]).wait() == 0
    assert told.read_text() == f"{[False] * len(closed)}\n"


@pytest.mark.parametrize("pause", [0, 0.5])
def test_a_program_that_closes_all_files_is_not_disturbed(bench, pause):
    """Programs that become daemons close every number: nothing of ours complains, and what they print is kept."""
    code = f"import os, time\ntime.sleep({pause})\nos.closerange(3, 1000)\nprint('closed', flush=True)"
    run = bench.run(code, interpreter=RUN)
    assert (run.out, run.process.returncode) == ("closed\n", 0)
    assert "Traceback" not in run.err
    until(lambda: "closed" in texts(), "the line in the run")


def test_closed_streams_are_left_closed(bench):
    """A program started without standard output runs as it would, and what it says on the other stream is kept."""
    code = "import os, sys\nos.write(2, b'only err\\n')\nsys.exit(0 if sys.stdout is None else 9)"
    script = bench.folder / "closed.py"
    script.write_text(code)
    start = f"import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *{RUN}, {str(script)!r}])"
    run = bench.start("", interpreter=["-c", start])
    assert run.wait() == 0, run.err
    assert [(line.stream, line.text) for line in lines()] == [("err", "only err")]


def test_binary_output_is_handed_on_whole(bench):
    """Binary output and lines without an end pass unchanged; the run keeps a bounded part of them."""
    code = """
        import os
        data = bytes(range(256)) * 4096 + b"x" * 10_000_000 + b"\\n"
        while data:
            data = data[os.write(1, data):]
    """
    with (bench.folder / "out").open("wb") as file:
        run = bench.start(code, interpreter=RUN, stdout=file)
    assert run.process.wait(60) == 0
    until(lambda: not keepers(bench), "the end of the keeper")
    assert (bench.folder / "out").stat().st_size == 256 * 4096 + 10_000_001
    (longest,) = lines(last=1)
    assert longest.is_cut
    assert len(longest.text) == 16384


RANKS = """
    import os, subprocess, sys, time
    rank = int(os.environ["RANK"])
    for number in range(300):
        print(f"rank {rank} says {number} " + "x" * 60, flush=True)
    subprocess.run(["sh", "-c", f"echo child of {rank} >&2"])
"""


@pytest.mark.slow
def test_four_ranks_under_torchrun_have_a_console_each(bench):
    """What torchrun merges into one pipe is told apart by rank in the run, and no line is torn in the pipe."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=4", *RUN]
    pytest.importorskip("torch")
    run = bench.run(RANKS, interpreter=launcher, environ={"PYTHONWARNINGS": ""})
    assert run.process.returncode == 0, run.err
    until(lambda: not keepers(bench), "the end of the keepers")
    wanted = [f"rank {rank} says {number} " + "x" * 60 for rank in range(4) for number in range(300)]
    assert sorted(run.out.splitlines()) == sorted(wanted)
    for rank in range(4):
        mine = [line for line in lines(ranks=(rank,)) if line.stream == "out"]
        assert [line.text for line in mine] == wanted[300 * rank : 300 * rank + 300]
        assert f"child of {rank}" in texts(ranks=(rank,), level="err")


@pytest.mark.slow
def test_workers_of_a_data_loader_are_kept(bench):
    """Lines of DataLoader workers, which inherit the streams, are in the run."""
    pytest.importorskip("torch")
    code = """
        import torch
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, at):
                print("item", at, flush=True)
                return at
        for batch in torch.utils.data.DataLoader(Numbers(), num_workers=2): pass
        print("end")
    """
    run = bench.run(code, interpreter=RUN, environ={"PYTHONWARNINGS": ""})
    assert run.process.returncode == 0, run.err
    until(lambda: not keepers(bench), "the end of the keeper")
    assert sorted(texts(level=None)) == ["end", *(f"item {number}" for number in range(4))]


def test_a_full_disk_does_not_hold_the_program_up(bench):
    """While the disk is full the program prints as before; lines of that time are counted as lost, later ones kept."""
    guard = bench.folder / "full"
    code = """
        import os, sys, time
        def say(first, last):
            for number in range(first, last):
                start = time.monotonic()
                os.write(1, b"line %d\\n" % number)
                slowest.append(time.monotonic() - start)
                time.sleep(0.001)
        slowest = []
        say(0, 100); time.sleep(0.5)
        open(sys.argv[1], "w").close()
        say(100, 600); time.sleep(0.5)
        os.unlink(sys.argv[1])
        time.sleep(1.5)
        say(600, 700)
    """
    faults = shim.environment(shim.build(bench.folder), os.environ["STEPSCOPE_DIR"], guard, errno.ENOSPC)
    run = bench.run(code, guard, interpreter=RUN, environ=faults)
    assert run.out.splitlines() == [f"line {number}" for number in range(700)]
    until(lambda: not keepers(bench), "the end of the keeper")
    (path,) = folders()
    answer = read_console(RunFolder(Path(path)), ConsoleQuery())
    kept = [line.text for line in answer.lines if line.stream == "out"]
    assert kept[:100] == [f"line {number}" for number in range(100)]
    assert kept[-100:] == [f"line {number}" for number in range(600, 700)]
    assert answer.dropped + len(kept) == 700
    assert answer.dropped >= 500
