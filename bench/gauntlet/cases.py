"""The cases: a script, the arguments that plant its cause, those that remove it, and the verdicts that are right."""

from __future__ import annotations

from dataclasses import dataclass

NONE = ("none", "compute_bound")
"""Verdicts that say that nothing is wrong: a healthy training computes."""


@dataclass(frozen=True)
class Case:
    """One training to be judged."""

    name: str
    script: str
    kinds: tuple[str, ...] = NONE
    """Primary verdicts that are right."""
    arguments: tuple[str, ...] = ()
    without: tuple[str, ...] | None = None
    """Arguments without the cause, where its removal makes steps shorter; None: there is no gain to measure."""
    ranks: int = 1
    rank: int | None = None
    """The rank that must be named."""
    quota: float | None = None
    """Processors that the control group allows; removed with the cause."""
    alive: float | None = None
    """Seconds without a printed line after which the run is judged while it still stands, and then ended."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was planted."""
        return self.name.startswith("healthy")


INPUT, HOST = ("input_bound",), ("host_bound",)
LOGGING = ("logging_heavy",)
NARROW = ("--width", "640", "--steps", "150")

SPEED = (
    Case("slow dataset", "csv_rows.py", INPUT, without=("--cache",)),
    Case("slow transform", "augment.py", INPUT, without=("--augment", "none")),
    Case("remote objects, no workers", "remote_objects.py", INPUT, without=("--workers", "8")),
    Case("one worker for four", "one_worker.py", INPUT, without=("--num-workers", "8")),
    Case("large files on disk", "files_on_disk.py", INPUT, without=("--preload",)),
    Case("slow collate", "collate.py", INPUT, without=("--vectorized",)),
    Case("logs everything", "chatty_logger.py", LOGGING, without=("--log-every", "1000")),
    Case("prints tensors", "prints_tensors.py", (*LOGGING, *HOST), without=("--verbose", "0")),
    Case("metrics in Python", "python_metrics.py", HOST, without=("--metric-every", "1000")),
    Case("reads every parameter", "gradient_report.py", HOST, without=("--report-every", "1000")),
    Case("collects garbage", "manual_gc.py", ("gc_pauses",), without=("--no-collect",)),
    Case("saves too often", "saves_often.py", ("checkpoint_heavy",), without=("--save-every", "100000")),
    Case("validates too often", "validates_often.py", ("evaluation_heavy",), without=("--eval-every", "100000")),
    Case("recompiles", "recompiles.py", ("compile_heavy",), without=("--pad-to", "72")),
    Case("periodic upload", "periodic_sync.py", ("periodic_stall",), without=("--upload-every", "0")),
    Case("mixes short and long texts", "padding.py", ("padding_waste",), without=("--bucket",)),
    Case("pads to the limit", "mask_padding.py", ("padding_waste",), without=("--max-length", "32")),
    Case("wide model", "wide_model.py", ("compute_bound",)),
    Case("a fifth of a processor", "wide_model.py", ("cpu_throttled",), NARROW, (), quota=0.2),
    Case(
        "slow rank, compute",
        "ddp_uneven.py",
        ("straggler",),
        ("--slow-rank", "1"),
        ("--slow-rank", "-1"),
        ranks=2,
        rank=1,
    ),
    Case(
        "slow rank, input",
        "ddp_uneven.py",
        ("straggler",),
        ("--slow-rank", "1", "--where", "input"),
        ("--slow-rank", "-1"),
        ranks=2,
        rank=1,
    ),
    Case("DDP, large and short", "ddp_large.py", ("communication_bound",), without=("--reduce-every", "1000"), ranks=2),
    Case(
        "averages by hand",
        "averages_by_hand.py",
        ("communication_bound",),
        without=("--average-every", "1000"),
        ranks=2,
    ),
)

HEALTH = (
    Case("keeps graphs", "keeps_graphs.py", ("memory_leak",)),
    Case("endless replay buffer", "replay_leak.py", ("memory_leak",)),
    Case("learning rate that grows", "growing_rate.py", ("divergence", "learning_rate")),
    Case("scheduler per batch", "scheduler_per_batch.py", ("learning_rate",)),
    Case("schedule jumps up", "schedule_jump.py", ("learning_rate", "divergence")),
    Case("bad batches", "bad_batch.py", ("loss_spike",)),
    Case("updates nothing", "forgotten_parameters.py", ("plateau", "learning_rate")),
    Case("nothing to learn", "shuffled_labels.py", ("plateau",)),
    Case("logarithm of zero", "log_of_zero.py", ("non_finite",)),
    Case("division by zero", "zero_variance.py", ("non_finite",)),
    Case("recurrent, unclipped", "recurrent.py", ("exploding_gradients",)),
    Case("deep sigmoids", "deep_sigmoid.py", ("vanishing_gradients",)),
    Case("dead units", "dead_relu.py", ("dead_gradients",)),
    Case("few examples, many epochs", "overfit.py", ("overfitting",)),
    Case("killed worker", "dead_worker.py", ("dead_worker",)),
    Case("last batch is short", "crashes.py", ("crash",)),
    Case("waits for ever", "hangs.py", ("hang",), alive=14.0),
    Case("batch too large", "too_large.py", ("oom",)),
)

HEALTHY = (
    *(
        Case(f"healthy: {name}", f"healthy_{script}.py")
        for name, script in (
            ("images, validation, checkpoints", "images"),
            ("tiny steps", "tiny"),
            ("multi-scale images", "multi_scale"),
            ("warm-up and cosine", "warmup_cosine"),
            ("warm restarts", "restarts"),
            ("accumulation", "accumulation"),
            ("texts in buckets", "buckets"),
            ("noise around zero", "reinforce"),
            ("GAN", "gan"),
            ("actor and critic", "actor_critic"),
            ("mixed precision", "mixed_precision"),
            ("workers that keep up", "workers"),
            ("compiled once", "compiled"),
            ("L-BFGS", "closure"),
            ("autoencoder", "vae"),
            ("frozen body", "frozen_body"),
            ("teacher and student", "teacher"),
            ("a short try", "short"),
            ("batches of four", "noisy_batches"),
            ("curriculum", "curriculum"),
            ("fine-tuning on few labels", "finetune"),
            ("policy gradient", "policy"),
            ("cyclic learning rate", "cycles"),
        )
    ),
    Case("healthy: plain regression", "regression.py"),
    Case("healthy: rows, parsed once", "csv_rows.py", arguments=("--cache",)),
    Case("healthy: two equal ranks", "ddp_uneven.py", ranks=2),
    Case("healthy: learning rate per epoch", "scheduler_per_batch.py", arguments=("--per-epoch",)),
)

CASES = (*SPEED, *HEALTH, *HEALTHY)
