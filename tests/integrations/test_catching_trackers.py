"""Real scripts of other trackers, run with their own packages: what their reader returns is in our run as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from tests.integration.processes import wait_until_written

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "trackers"
BRIDGES, AIM = (ROOT / name / "bin" / "python" for name in (".venv-bridges", ".venv-aim"))
PYTHONS = {
    **dict.fromkeys(("wandb", "tensorboard", "tensorboardx", "mlflow", "trackio"), Path(sys.executable)),
    **dict.fromkeys(("swanlab", "comet", "neptune"), BRIDGES),
    "aim": AIM,
}
"""The interpreter that has each tracker."""
NEEDS = {"tensorboard": "torch.utils.tensorboard", "tensorboardx": "tensorboardX"}
CONFIGS = {"mlflow": {"lr": "0.1", "layers": "3", "name": "x"}, "wandb": {"lr": 0.1, "layers": 3}}
"""Settings that a script tells its tracker, where they are not just a learning rate."""
SILENT = {"tensorboard", "tensorboardx"}
"""Those that are told no settings."""
SECONDS = 240


def run_python(tracker, *words, environ=()):
    """Run the tracker's interpreter, and return what it printed."""
    more = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [str(PYTHONS[tracker]), *map(str, words)],
        env={**os.environ, **more, **dict(environ)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=words[-1],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(tracker, folder):
    """Return what the tracker's own reader finds in a folder: points by name."""
    printed = run_python(tracker, SCRIPTS / f"{tracker}_script.py", "read", folder)
    return {name: [tuple(point) for point in points] for name, points in json.loads(printed.splitlines()[-1]).items()}


class Written:
    """What one tracker has written, alone and under `stepscope run`, and our run."""

    def __init__(self, tracker, folder):
        script = SCRIPTS / f"{tracker}_script.py"
        self.tracker, (alone, caught) = tracker, (folder / "alone", folder / "caught")
        for place, words in ((alone, ()), (caught, ("-m", "stepscope", "run"))):
            place.mkdir()
            run_python(tracker, *words, script, "write", place, environ={"STEPSCOPE_DIR": str(folder / "runs")}.items())
        self.alone, self.caught = read(tracker, alone), read(tracker, caught)
        [info] = stepscope.runs(folder / "runs")
        self.past = wait_until_written(info)

    def ours(self, name):
        """Return the points of a name in our run."""
        series = self.past.series(name)
        return sorted(zip(series.step.tolist(), series.value.tolist(), strict=True))


@pytest.fixture(scope="module", params=PYTHONS)
def written(request, tmp_path_factory):
    """Return what a tracker's script has written; made once for all rules."""
    tracker = request.param
    if PYTHONS[tracker] in {BRIDGES, AIM} and not PYTHONS[tracker].exists():
        pytest.skip(f"make {'aim' if tracker == 'aim' else 'bridges-env'} was not run")
    if PYTHONS[tracker] == Path(sys.executable):
        pytest.importorskip(NEEDS.get(tracker, tracker))
    return Written(tracker, tmp_path_factory.mktemp(tracker))


def test_values_and_steps_are_those_of_the_tracker(written):
    """Each point that the tracker's own reader returns is in our run, at the same step; TensorBoard's have 32 bits."""
    assert written.caught
    for name, points in written.caught.items():
        assert written.ours(name) == [(step, pytest.approx(value, rel=1e-7)) for step, value in points], name


def test_the_tracker_writes_the_same_without_us(written):
    """What a tracker's reader finds in its files is the same with and without us."""
    assert written.caught == written.alone


def test_settings_are_the_configuration_of_the_run(written):
    """What a script tells its tracker about itself is in the configuration of our run."""
    expected = {} if written.tracker in SILENT else CONFIGS.get(written.tracker, {"lr": 0.1})
    assert expected.items() <= (written.past.meta["config"] or {}).items()


def test_what_is_no_number_is_an_event(written):
    """Text is kept as an event with its name, step and size, without its content."""
    texts = [event for event in written.past.events() if event["kind"] == "text"]
    if written.tracker == "aim":
        assert texts == []
        return
    assert len(texts) == 1
    assert "hello" not in json.dumps(texts)
    assert isinstance(texts[0]["step"], int)
    assert texts[0].get("size_bytes", 5) == 5


def test_a_disabled_wandb_run_is_caught_too(tmp_path):
    """With `mode="disabled"` W&B writes nothing; our run has the same points as of an offline run."""
    pytest.importorskip("wandb")
    offline = Written("wandb", tmp_path)
    place = tmp_path / "disabled"
    place.mkdir()
    environ = {"STEPSCOPE_DIR": str(place / "runs"), "WANDB_MODE": "disabled"}
    words = ("-m", "stepscope", "run", SCRIPTS / "wandb_script.py", "write", place)
    run_python("wandb", *words, environ=environ.items())
    [info] = stepscope.runs(place / "runs")
    past = wait_until_written(info)
    assert not (place / "wandb").exists()
    assert past.config == offline.past.config
    for name in offline.caught:
        series = past.series(name)
        assert sorted(zip(series.step.tolist(), series.value.tolist(), strict=True)) == offline.ours(name), name
