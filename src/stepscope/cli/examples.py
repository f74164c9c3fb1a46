"""Examples of every command and action, as its `--help` shows them."""

from __future__ import annotations

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
    "report": (
        "stepscope report latest --html report.html",
        "stepscope report latest --html r.html --png pictures --json r.json --markdown r.md",
        "stepscope report --compare 20260101-aa 20260102-bb --html compare.html",
        "stepscope report latest --baseline",
    ),
    "sql": ("stepscope sql \"SELECT run, min(value) FROM points WHERE name = 'loss' GROUP BY run\"",),
    "diagnose": ("stepscope diagnose latest", "stepscope diagnose trainer_state.json --json"),
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
    ),
    "import": (
        "stepscope import lightning_logs/version_0",
        "stepscope import run.json --project restored",
        'stepscope import resource_logs --name "resources of run 7"',
    ),
    "gc": ("stepscope gc --dry-run --max-size-gb 100", "stepscope gc --max-age-days 30 --max-runs 500"),
    "doctor": ("stepscope doctor", "stepscope doctor --json"),
    "completion": (
        'eval "$(stepscope completion bash)"     # in ~/.bashrc',
        'eval "$(stepscope completion zsh)"      # in ~/.zshrc, after compinit',
        "stepscope completion fish | source     # in ~/.config/fish/config.fish",
    ),
}


def shown(name: str) -> str | None:
    """Return the examples of a command as they stand below its options; None if it has none."""
    lines = EXAMPLES.get(name)
    if lines is None:
        return None
    title = "example:" if len(lines) == 1 else "examples:"
    return "\n".join([title, *(f"  {line}" for line in lines)])
