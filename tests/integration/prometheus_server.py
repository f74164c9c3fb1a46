"""A real Prometheus for the tests: Debian's package, with a configuration and a folder of the test's own."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from stepscope.exporters.prometheus.grafana_panels import VARIABLES
from tests.integration.processes import PATIENCE, free_port, until

EXAMPLES = Path(__file__).resolve().parents[2] / "monitoring" / "prometheus"
NEEDED = "needs Prometheus: apt-get install prometheus"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=NEEDED)


def configuration(targets, interval):
    """Return the example configuration of the repository, scraping faster and only what is in the folder `targets`."""
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(EXAMPLES / name) for name in config["rule_files"]]
    [job] = [one for one in config["scrape_configs"] if "file_sd_configs" in one]
    job["file_sd_configs"][0] = {"files": [f"{targets}/*.json"], "refresh_interval": "1s"}
    config["scrape_configs"] = [job]
    return config


class Prometheus:
    """One server, started and stopped by the test."""

    def __init__(self, folder, targets, interval="1s"):
        """Start it on a free port; `targets` is the folder of the file_sd files."""
        self.port = free_port()
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(configuration(targets, interval)), encoding="utf-8")
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def get(self, path, **parameters):
        """Return the data of an answer of the API; an empty list while the server is not ready."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:
                    return []
                raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        except (OSError, ConnectionError):
            return []

    def ask(self, expression):
        """Return the series that a query gives now, each with labels and value."""
        data = self.get("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in data["result"]] if data else []

    def wait_for(self, expression, seconds=PATIENCE):
        """Return what a query gives, as soon as it gives anything."""
        return until(lambda: self.ask(expression), f"an answer to {expression}", seconds, every=0.2)

    def close(self):
        """Stop it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        self.process.wait()


def plain(expression):
    """Return an expression of the dashboard as Grafana sends it with all runs, ranks and GPUs chosen."""
    for name, _, _ in VARIABLES:
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", "30s")
