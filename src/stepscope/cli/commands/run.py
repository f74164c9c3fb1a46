"""Run a training script and watch it: every step, its phases and the machine, with no change to the script.

The script runs in this very process, as Python itself would run it: its output, exit code, signals, arguments and
worker processes are its own. Under torchrun: torchrun … -m stepscope run train.py
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from stepscope.cli.command import add_shared
from stepscope.core.after_import import AfterImport
from stepscope.core.endings import end_of
from stepscope.core.errors import UsageError
from stepscope.core.identity import RUN_ID_VARIABLE
from stepscope.core.provided import provided
from stepscope.session import card, program
from stepscope.session.current import CURRENT
from stepscope.session.flight_recorder import record_collectives
from stepscope.session.opening import init
from stepscope.session.script_config import follow_argparse, follow_hydra

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the options; everything from the script on is the script's."""
    parser.usage = "stepscope run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    parser.add_argument("--project", help="folder of runs that belong together (default: the script's name)")
    parser.add_argument("--name", help="display name of the run; any text")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="word to find it by; may be repeated")
    parser.add_argument("--group", help="what it belongs to inside its project, such as a sweep", default="")
    parser.add_argument("--notes", help="free text about the run", default="")
    parser.add_argument("--run-id", metavar="ID", help="id of the run; an existing run gets another attempt")
    parser.add_argument("--config", metavar="FILE", help="configuration file beside stepscope.yaml")
    add_shared(parser, "dir")
    text = "`import wandb` gives the script Stepscope's drop-in: nothing is sent to W&B"
    parser.add_argument("--as-wandb", action="store_true", help=text)
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    text = "the script and its arguments"
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGUMENT ...]", help=text)


def run(options: argparse.Namespace) -> Callable[[], int]:
    """Start the run; return a function that runs the program and lets its exceptions through, including SystemExit."""
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not words:
        raise UsageError("run a script", "no script is given", "write: stepscope run train.py")
    found = (program.find_module if options.module else program.find_script)(words[0])
    module = program.prepare(found, words[1:])
    begun = init(
        project=options.project or _project(words[0], is_module=options.module),
        name=options.name,
        dir=options.dir,
        config_file=options.config,
        run_id=options.run_id,
        resume=options.run_id is not None,
        tags=options.tag,
        group=options.group,
        notes=options.notes,
    )
    if options.as_wandb:
        provided("stand_in_for_wandb")()
    if begun.recording:
        CURRENT.launch(begun)
        os.environ[RUN_ID_VARIABLE] = begun.id
        record_collectives(os.environ)  # also for processes that the script starts
        begun.catch()
        begun.keep_console()
        imports = AfterImport()
        imports.call("torch", _watch)
        imports.call("hydra.core.hydra_config", lambda module: follow_hydra(module, CURRENT.later))
        follow_argparse(CURRENT.later)
    return lambda: _execute(found, module)


def _execute(found: program.FoundProgram, module: ModuleType) -> int:
    """Run the program; keep how it ended for the card of the run."""
    try:
        code = program.execute(found, module)
    except BaseException as error:
        CURRENT.end = end_of(error)
        card.load()
        raise
    CURRENT.end = end_of(None)
    return code


def _watch(torch: ModuleType) -> None:  # noqa: ARG001 - that it was imported is all that matters
    run = CURRENT.run
    run.watch()
    if run.instrument is not None:
        run.instrument.listen()


def _project(words: str, *, is_module: bool) -> str | None:
    """Return a project name made of the script's name; None if that has no letter or digit for one."""
    stem = words.rpartition(".")[2] if is_module else os.path.splitext(os.path.basename(words.rstrip("/")))[0]
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-" for letter in stem)
    return name.strip("-")[:64] or None
