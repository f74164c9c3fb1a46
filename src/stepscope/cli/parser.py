"""The argument parser: commands grouped by purpose, examples, and readable errors."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import sys
import textwrap
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from stepscope.cli.command import USAGE
from stepscope.cli.text.terminal import columns
from stepscope.core.terminal_text import plain_lines
from stepscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

GROUPS: dict[str, tuple[str, ...]] = {
    "get started": ("demo", "doctor"),
    "record a training": ("run", "profile"),
    "watch a training live": ("top", "serve", "monitor", "alerts"),
    "look at runs": ("runs", "show", "ranks", "logs", "report", "sql"),
    "find out why a run is slow or failing": ("diagnose", "hang", "trace", "ledger"),
    "compare runs and stop regressions": ("compare", "baseline"),
    "exchange data with other tools": ("export", "tee", "import", "follow"),
    "maintain": ("gc", "completion"),
}
"""Every command, by purpose."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
MODULES = {"import": "imports"}
"""Commands whose module cannot have their name."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("stepscope demo", "stepscope demo --steps 300 --seed 7 --speed 4"),
    "run": (
        "stepscope run train.py --epochs 3",
        'stepscope run --project mnist --name "first try" train.py --lr 3e-4',
        "stepscope run -m package.train",
        "torchrun --nproc-per-node=8 -m stepscope run train.py",
    ),
    "profile": ("stepscope profile latest --steps 20", "stepscope profile latest --rank 3 --no-trace --json"),
    "top": (
        "stepscope top",
        "stepscope top latest",
        "stepscope top --machine --gpu 0 --interval 0.5",
        "stepscope top --json --count 1",
    ),
    "serve": ("stepscope serve", "stepscope serve runs/ --port 8081 --open"),
    "monitor": (
        "stepscope monitor",
        "stepscope monitor --gpu 0 --interval 0.5 --prometheus-port 9090 --jsonl-dir ./gpu_logs",
        "stepscope monitor --count 3 --json",
    ),
    "alerts": ("stepscope alerts list", "stepscope alerts ack latest loss_spike"),
    "alerts list": ("stepscope alerts list", "stepscope alerts list latest --all"),
    "alerts history": ("stepscope alerts history latest",),
    "alerts ack": ("stepscope alerts ack latest loss_spike",),
    "alerts silence": (
        "stepscope alerts silence latest 'gpu_*' --for 2h",
        "stepscope alerts silence latest 'gpu_*' --lift",
    ),
    "alerts rules": ("stepscope alerts rules --profile strict", "stepscope alerts rules my_rules.yaml"),
    "alerts check": ("stepscope alerts check", "stepscope alerts check my_rules.yaml --offline"),
    "alerts test": ("stepscope alerts test --channel mail",),
    "alerts backtest": ("stepscope alerts backtest rules.yaml run-1 run-2 --incident run-1=1200",),
    "alerts suggest": ("stepscope alerts suggest run-1 run-2",),
    "runs": ("stepscope runs", "stepscope runs --project mnist --state failed", "stepscope runs -n 0 --json"),
    "show": ("stepscope show latest", "stepscope show latest --metric loss --metric lr"),
    "ranks": (
        "stepscope ranks latest",
        "stepscope ranks latest --by node",
        "stepscope ranks latest --what phase/forward --steps 1000:2000",
        "stepscope ranks latest --step 1234 --rank 17",
    ),
    "logs": (
        "stepscope logs latest",
        "stepscope logs latest --rank 3,8-15 --grep nan --last 50",
        "stepscope logs latest --since 1200 --until 1210",
        "stepscope logs latest --follow",
    ),
    "report": (
        "stepscope report latest --html report.html",
        "stepscope report latest --html r.html --png pictures --json r.json --markdown r.md",
        "stepscope report --compare 20260101-aa 20260102-bb --html compare.html",
        "stepscope report latest --baseline",
    ),
    "sql": ("stepscope sql \"SELECT run, min(value) FROM points WHERE name = 'loss' GROUP BY run\"",),
    "diagnose": ("stepscope diagnose latest", "stepscope diagnose trainer_state.json --json"),
    "hang": ("stepscope hang latest", "stepscope hang latest --json", "stepscope hang dumps/ --json"),
    "ledger": ("stepscope ledger latest --price 2.5", "stepscope ledger latest --price aws/H100 --steps 100000"),
    "trace": (
        "stepscope trace rank0.pt.trace.json.gz",
        "stepscope trace before.json.gz after.json.gz --compare",
        "stepscope trace traces/ --html trace.html",
    ),
    "compare": (
        "stepscope compare main latest",
        "stepscope compare a1,a2,a3 b1,b2,b3 --gate 'step_seconds +3%' --gate 'loss@1000 +1%'",
        "stepscope compare old.wandb latest --metric val_loss --json",
    ),
    "baseline": ("stepscope baseline save main run-1,run-2,run-3", "stepscope compare main latest"),
    "baseline save": ("stepscope baseline save main run-1,run-2,run-3",),
    "baseline show": ("stepscope baseline show", "stepscope baseline show main --json"),
    "export": (
        "stepscope export latest --format csv > run.csv",
        "stepscope export latest --format tensorboard --output tb",
        "stepscope export latest --to mlflow+http://localhost:5000",
    ),
    "import": (
        "stepscope import lightning_logs/version_0",
        "stepscope import run.json --project restored",
        'stepscope import resource_logs --name "resources of run 7"',
    ),
    "tee": (
        "stepscope tee latest --to mlflow+http://localhost:5000",
        "stepscope tee latest --to wandb://team/mnist",
        "stepscope tee latest    # the sinks of stepscope.yaml",
    ),
    "follow": (
        "stepscope follow runs/",
        "stepscope follow wandb/offline-run-20260101_120000-abc/run-abc.wandb",
        "stepscope follow train.log --wait --project mnist",
    ),
    "gc": ("stepscope gc --dry-run --max-size-gb 100", "stepscope gc --max-age-days 30 --max-runs 500"),
    "doctor": ("stepscope doctor", "stepscope doctor --json"),
    "completion": (
        'eval "$(stepscope completion bash)"     # in ~/.bashrc',
        'eval "$(stepscope completion zsh)"      # in ~/.zshrc, after compinit',
        "stepscope completion fish | source     # in ~/.config/fish/config.fish",
    ),
}
"""Examples of every command and action, as its `--help` shows them."""

DESCRIPTION = "Watch machine-learning training: what each step does and costs, and why a run is slow or failing."
EPILOG = """\
RUN is the folder of a run, its id or a unique prefix of it, project/id, its display name, or 'latest'.
Exit codes: 0 success, 1 failure, 2 wrong usage, 3 a gate failed.

  stepscope demo                       see it work in a minute
  stepscope run train.py               record a training
  stepscope COMMAND --help             help and examples of a command"""
WIDTH = 12
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
_UNKNOWN = re.compile(r"unrecognized arguments: (?:.* )?(--?[\w-]+)")


class Parser(argparse.ArgumentParser):
    """A parser with errors in our form: cannot do what, why, and what to do."""

    chosen = ""
    """The requested command, if it exists."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        own = next((one for words, one in commands_of(self) if words == (self.chosen,)), self)
        own.print_usage(sys.stderr)
        name = f"{self.prog} {self.chosen}".rstrip()
        cause, meant = _meant(message, list(own._option_string_actions))  # noqa: SLF001 - as below
        remedy = f"see `{name} --help`" if meant is None else f"did you mean {meant!r}? see `{name} --help`"
        self.exit(USAGE, f"stepscope: cannot run `{name}`: {plain_lines(cause)}; {remedy}\n")


def _meant(message: str, options: list[str]) -> tuple[str, str | None]:
    """Return the error and the closest valid word; the list of choices is dropped where there is one."""
    found, unknown = _CHOICE.search(message), _UNKNOWN.search(message)
    if found is not None:
        choices = [word.strip(" '") for word in found[2].split(",")]
        near = get_close_matches(found[1], choices, 1)
        return (message.replace(f" (choose from {found[2]})", ""), near[0]) if near else (message, None)
    near = get_close_matches(unknown[1], options, 1) if unknown is not None else []
    return message, near[0] if near else None


class ProgramParser(Parser):
    """The top-level parser, whose help groups the commands."""

    def format_help(self) -> str:
        """Return usage, commands by purpose, options and epilog."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        lines = [formatter.format_help(), f"{self.description}\n", *self._listed(), "options:"]
        lines += ["  -h, --help  show this help", "  --version   show the version", "", f"{self.epilog}"]
        return "\n".join(lines) + "\n"

    def _listed(self) -> Iterator[str]:
        _, helps = subcommands(self)
        for title, names in GROUPS.items():
            rows = [_row(name, helps[name]) for name in names if name in helps]
            yield from [f"{title}:", *rows, ""] if rows else []


def _row(name: str, text: str) -> str:
    indent = " " * (WIDTH + 2)
    return textwrap.fill(text, columns(), initial_indent=f"  {name:<{WIDTH}}", subsequent_indent=indent)


def subcommands(parser: argparse.ArgumentParser) -> tuple[dict[str, argparse.ArgumentParser], dict[str, str]]:
    """Return the parsers of the commands below a parser, and their one line of help, each by name."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to look at a tree
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            helps = {pseudo.dest: str(pseudo.help or "") for pseudo in action._choices_actions}  # noqa: SLF001
            return action.choices, helps
    return {}, {}


def commands_of(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield every command and action below a parser with its words; the program itself has no words."""
    yield path, parser
    for name, own in subcommands(parser)[0].items():
        yield from commands_of(own, (*path, name))


def build_parser(names: Iterable[str] = COMMANDS) -> ProgramParser:
    """Return the parser with these commands; a command without a module is left out."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = ProgramParser("stepscope", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"stepscope {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name in names:
        place = f"stepscope.cli.commands.{MODULES.get(name, name)}"
        if importlib.util.find_spec(place) is None:
            continue
        module = importlib.import_module(place)
        text = (module.__doc__ or "").strip()
        own = commands.add_parser(name, help=text.partition("\n")[0].rstrip("."), description=text, formatter_class=raw)
        module.prepare(own)
        own.set_defaults(run_command=module.run)
    for words, each in commands_of(parser):
        if words:
            each.epilog, each.formatter_class = _shown(EXAMPLES.get(" ".join(words), ())), raw
    return parser


def _shown(examples: Sequence[str]) -> str | None:
    title = "example:" if len(examples) == 1 else "examples:"
    return "\n".join([title, *(f"  {line}" for line in examples)]) if examples else None
