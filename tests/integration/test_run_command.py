"""`stepscope run`: a script runs as Python itself would run it, and its steps are recorded without a line in it."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.integration.processes import free_port, the_run
from tests.integration.test_launchers import QUIET

RUN = ["-m", "stepscope", "run"]
WHERE = "stepscope: this run is in "


def both(bench, code, *arguments, **options):
    """Run a script plainly and under `stepscope run`; return both, without the line that says where the run is."""
    plain = bench.run(code, *arguments, **options)
    run = bench.run(code, *arguments, interpreter=RUN, **options)
    run.err = "".join(line for line in run.err.splitlines(keepends=True) if not line.startswith(WHERE))
    return plain, run


FACTS = """
    import json, os, sys
    class Thing: pass
    print(json.dumps({
        "name": __name__, "file": __file__, "argv": sys.argv, "first": sys.path[0], "spec": repr(__spec__),
        "is_main": sys.modules["__main__"].__dict__ is globals(), "thing": Thing.__module__,
        "doc": __doc__, "cwd": os.getcwd(), "package": __package__, "builtins": __builtins__ is sys.modules["builtins"],
    }))
"""


def test_a_script_cannot_tell_the_difference(bench):
    """Its name, file, arguments, path and module are those that Python gives it."""
    plain, run = both(bench, FACTS, "--project", "mine", "-m", "--", "last")
    assert json.loads(run.out) == json.loads(plain.out)
    assert run.err == plain.err == ""


ENDS = """
    import os, signal, sys, time
    how = sys.argv[1]
    def fail():
        raise OSError(28, "no space")
    if how == "raise":
        fail()
    if how == "code":
        sys.exit(7)
    if how == "text":
        sys.exit("a last word")
    if how == "hook":
        sys.excepthook = lambda kind, value, trace: print("hooked", kind.__name__, trace.tb_frame.f_code.co_name)
        fail()
    if how in ("SIGINT", "SIGTERM", "SIGKILL"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(600)
    if how == "atexit":
        import atexit
        atexit.register(lambda: print("at exit", __name__))
    print("done")
"""


@pytest.mark.parametrize("how", ["raise", "code", "text", "hook", "SIGINT", "SIGTERM", "SIGKILL", "atexit", "none"])
def test_a_script_ends_as_it_does_without_us(bench, how):
    """Exit code, signal, output and traceback, without a frame of ours, are the script's own."""
    plain, run = both(bench, ENDS, how)
    assert run.process.returncode == plain.process.returncode
    assert (run.out, run.err) == (plain.out, plain.err)
    if how.startswith("SIG"):
        assert run.process.returncode == -getattr(signal, how)


def test_an_uncaught_exception_is_kept_with_the_run(bench):
    """The run has failed, with the exception and a traceback that shows the script alone."""
    bench.run(ENDS, "raise", interpreter=RUN)
    past = the_run()
    assert past.state == "failed"
    (event,) = [event for event in past.events() if event["kind"] == "exception"]
    assert "no space" in event["error"]
    assert "stepscope" not in event["traceback"]


HUNGRY = """
    import torch

    class Hungry(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + (torch.empty(10**15).sum() if len(x) > 4 else 0)

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Hungry(3, 1))
    optimizer = torch.optim.SGD(model.parameters())
    for size in (4, 4, 4, 8):
        model(torch.randn(size, 3)).sum().backward()
        optimizer.step()
"""


def test_what_was_there_when_memory_ran_out_is_kept(bench):
    """The error goes on as without us; the run has the module that was running, the place and the largest tensors."""
    pytest.importorskip("torch", reason="needs torch, which is instrumented")
    plain, run = both(bench, HUNGRY, environ=QUIET)
    assert run.process.returncode == 1
    assert run.err.splitlines()[-1] == plain.err.splitlines()[-1]  # torch itself calls a module with hooks through more
    past = the_run()
    (event,) = [event for event in past.events() if event["kind"] == "out_of_memory"]
    assert event["module"] == "1 (Hungry)"
    assert event["place"].endswith("in forward")
    assert {"1.weight", "0.weight"} <= {tensor["name"] for tensor in event["tensors"]}
    assert past.series("grad_norm").value.tolist()
    assert past.series("memory/resident_bytes").value.min() > 1e6


BROKEN = """
    import torch

    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            raise KeyError("no such picture")

    for batch in torch.utils.data.DataLoader(Broken()):
        pass
"""


def test_a_traceback_through_our_hooks_does_not_show_them(bench):
    """An error inside what the hooks wrap reads as it does without them."""
    pytest.importorskip("torch", reason="needs torch, which is instrumented")
    plain, run = both(bench, BROKEN, environ=QUIET)
    assert (run.process.returncode, run.err) == (1, plain.err)


def test_a_syntax_error_is_shown_as_python_shows_it(bench):
    """A script that does not compile fails with its own message and no traceback of ours."""
    plain, run = both(bench, "x = (\n")
    assert (run.process.returncode, run.err) == (plain.process.returncode, plain.err) == (1, plain.err)


def test_a_missing_script_is_a_usage_error(bench):
    """What cannot be found is said in one line, with exit code 2."""
    for arguments in (["gone.py"], ["-m", "no_such_module"], []):
        done = bench.start("", interpreter=["-c", CALL, *arguments])  # the last argument is the trainer's own path
        assert done.wait() == 2
        assert done.err.startswith("stepscope: cannot run")


CALL = "import sys; from stepscope.cli.main import main; sys.exit(main(['run', *sys.argv[1:-1]]))"


MODULE = """
    import json, sys
    print(json.dumps([__name__, __spec__.name, __package__, sys.argv[1:], sys.path[0]]))
"""


def test_a_module_is_run_like_python_m(bench):
    """With -m a module or a package is found by name, with its spec and package."""
    (bench.folder / "pack").mkdir()
    (bench.folder / "pack" / "__init__.py").write_text("")
    (bench.folder / "pack" / "__main__.py").write_text(
        "import runpy, sys\nprint(__name__, __package__, sys.argv[1:])\n"
    )
    plain = bench.start(MODULE, interpreter=["-m", "train", "--flag"], name="train.py")
    run = bench.start(MODULE, interpreter=[*RUN, "-m", "train", "--flag"], name="train.py")
    assert (plain.wait(), run.wait()) == (0, 0), run.err
    assert json.loads(run.out) == json.loads(plain.out)
    package = bench.start(MODULE, interpreter=[*RUN, "--project", "p", "-m", "pack", "one"], name="train.py")
    assert package.wait() == 0, package.err
    assert package.out.startswith("__main__ pack ['one'")


CHILDREN = """
    import multiprocessing, os, subprocess, sys

    class Task:
        def __init__(self, number): self.number = number
        def __reduce__(self): return Task, (self.number,)

    def work(task):
        import stepscope.session.current as current
        return task.number * 2, current.CURRENT.run.recording, os.environ["STEPSCOPE_RUN_ID"], "torch" in sys.modules

    if __name__ == "__main__":
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            print(pool.map(work, [Task(n) for n in range(3)]))
        child = subprocess.run([sys.executable, "-c", "import os; print(os.environ['STEPSCOPE_RUN_ID'])"],
                               capture_output=True, text=True)
        print(child.stdout.strip() == os.environ["STEPSCOPE_RUN_ID"])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_work_and_are_no_runs(bench, method):
    """Objects of `__main__` travel to workers started in any way; none of them records, all know the run's id."""
    run = bench.run(CHILDREN, method, interpreter=RUN)
    assert run.process.returncode == 0, run.err
    past = the_run()
    lines = run.out.splitlines()
    assert lines[0] == str([(2 * n, False, past.id, False) for n in range(3)])
    assert lines[1] == "True"


OWN = """
    import stepscope
    run = stepscope.init(project="other", name="mine", config={"lr": 0.5})
    run.log({"loss": 1.0})
    print(run.id, run.path)
    run.finish()
"""


def test_a_script_that_begins_a_run_joins_ours(bench):
    """`init` in the script returns the run that the command began, and keeps its configuration: one run, not two."""
    run = bench.run(OWN, interpreter=[*RUN, "--project", "ours"])
    assert run.process.returncode == 0, run.err
    past = the_run()
    assert run.out.split() == [past.id, str(past.path)]
    assert past.meta["project"] == "ours"
    assert past.series("loss").value.tolist() == [1.0]
    (event,) = [event for event in past.events() if event["kind"] == "config"]
    assert event["config"] == {"lr": 0.5}


QUICK = """
    import json, sys
    before = set(sys.modules)
    finders = [type(finder).__name__ for finder in sys.meta_path]
    print(json.dumps([finders, sorted(name for name in before if name.startswith("stepscope.integrations"))]))
"""


def test_a_script_without_torch_loads_nothing_of_it(bench):
    """Until torch is imported there are finders, which wait for it and for trackers, and no hook of torch."""
    finders, loaded = json.loads(bench.run(QUICK, interpreter=RUN).out)
    assert finders[0] == "AfterImport"
    others = [name for name in loaded if not name.startswith("stepscope.integrations.catching")]
    assert others == ["stepscope.integrations", "stepscope.integrations.torch", "stepscope.integrations.torch.patches"]


TRAIN = """
    import sys
    import torch

    def main():
        torch.set_num_threads(1)
        torch.manual_seed(0)
        data = torch.utils.data.TensorDataset(torch.randn(240, 16), torch.randint(0, 4, (240,)))
        loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=int(sys.argv[1]))
        model = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
        optimizer = torch.optim.Adam(model.parameters())
        criterion = torch.nn.CrossEntropyLoss()
        for epoch in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
        torch.save(model.state_dict(), "model.pt")
        print(f"loss {criterion(model(data.tensors[0]), data.tensors[1]).item():.6f}")

    main()
"""


@pytest.mark.promise("S1-004")
def test_the_steps_of_a_plain_script_are_recorded(bench):
    """Without a line in the script every step is there with duration, samples and phases; the result is the same."""
    pytest.importorskip("torch", reason="needs torch, which is instrumented")
    plain, run = both(bench, TRAIN, 0, environ=QUIET)
    assert run.process.returncode == 0, run.err
    assert run.out == plain.out
    past = the_run()
    assert past.state == "finished"
    assert past.series("step_seconds").step.tolist() == list(range(30))
    assert past.series("samples").value.tolist() == [16.0] * 30
    for phase in ("data", "forward", "backward", "optimizer"):
        assert (past.series(f"phase/{phase}").value > 0).all()


RANKS = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(96, 64))
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_under_torchrun_are_one_run(bench):
    """`torchrun -m stepscope run` records every rank of a DDP training into one run, collectives and all."""
    pytest.importorskip("torch", reason="needs torch, which is instrumented")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", *RUN]
    trainer = bench.start(RANKS, environ=QUIET, interpreter=launcher)
    assert trainer.wait() == 0, trainer.err
    past = the_run()
    for rank in (0, 1):
        assert past.series("step_seconds", rank=rank).step.tolist() == list(range(12))
        assert len(past.series("phase/communication", rank=rank).value) > 0
        assert len(past.series("phase/forward", rank=rank).value) > 0


def test_a_signal_reaches_a_script_that_handles_it(bench):
    """A handler of the script's own is called, and decides how the script ends."""
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
        print("ready", flush=True)
        time.sleep(600)
    """
    trainer = bench.start(code, interpreter=RUN)
    assert trainer.line() == "ready"
    trainer.process.send_signal(signal.SIGTERM)
    assert trainer.wait() == 42


def test_an_unbuffered_interactive_read_works(bench):
    """Standard input is the script's own."""
    code = "import sys; print(sys.stdin.readline().strip() * 2)"
    trainer = bench.start(code, interpreter=RUN, stdin=subprocess.PIPE)
    out, err = trainer.process.communicate("ab\n", timeout=240)
    assert (trainer.process.returncode, out) == (0, "abab\n"), err


ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--password", default="hunter2")
    print(parser.parse_args().lr)
"""


def test_arguments_of_a_script_are_the_configuration_of_its_run(bench):
    """What argparse made of the command line stands in the run, without secrets, and a pipe is told where that is."""
    trainer = bench.run(ARGUMENTS, "--lr", "0.5", interpreter=RUN)
    past = the_run()
    assert trainer.out == "0.5\n"
    assert past.config == {"lr": 0.5, "password": "[redacted]"}
    [line] = trainer.err.splitlines()
    assert line.startswith(WHERE)
    assert past.id in line


NAMED = """
    import stepscope
    with stepscope.init(name="my own", config={"depth": 3}) as run:
        run.log(x=1.0)
"""


def test_what_a_script_says_of_its_run_counts(bench):
    """A script that begins a run itself names it, and gives its configuration."""
    assert bench.run(NAMED, interpreter=RUN).process.returncode == 0
    past = the_run()
    assert (past.name, past.config) == ("my own", {"depth": 3})


COMPOSED = """
    import hydra
    @hydra.main(version_base=None)
    def main(cfg):
        print(dict(cfg))
    main()
"""


def test_what_hydra_composes_is_the_configuration(bench):
    """Overrides on the command line are kept; Hydra's own options are not."""
    pytest.importorskip("hydra", reason="composes the configuration")
    trainer = bench.run(COMPOSED, "+lr=0.5", "hydra.run.dir=.", interpreter=RUN)
    assert trainer.out == "{'lr': 0.5}\n", trainer.err
    assert the_run().config == {"lr": 0.5}
