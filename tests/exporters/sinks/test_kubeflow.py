"""Rules of the Kubeflow sink, against a server with TLS in the role of Kubeflow's."""

from __future__ import annotations

import json
import math
import os
import ssl

import pytest

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.kubeflow import KubeflowSink, metrics_of, status_of
from stepscope.exporters.sinks.sink import RunNews, SinkDeniesError, SinkDownError, SinkRefusesError
from stepscope.exporters.sinks.table import new_sink
from tests.alerts.servers import Hook, make_certificate
from tests.exporters.sinks.batches import RUN

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/mnist/status"
NEWS = RunNews(progress=0.456, remaining=12.2, latest={"loss": 0.25, "lr": math.nan})


class Kubeflow(Hook):
    """A server that behaves as reported, with a certificate that only its own authority signs."""

    def __init__(self, folder, *behaviours):
        """Start, and write the files of which a TrainJob is reported."""
        super().__init__(*behaviours)
        certificate, key = make_certificate(folder)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.token = folder / "token"
        self.token.write_text("first-token\n")
        self.environ = {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{self.port}{PATH}",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificate),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token),
        }

    def tokens(self):
        """Return the tokens that were presented."""
        return [request["headers"]["Authorization"] for request in self.requests]


@pytest.fixture
def start(tmp_path):
    """Start servers that behave as reported, and stop them at the end."""
    made = []

    def one(*behaviours):
        made.append(Kubeflow(tmp_path, *behaviours))
        return made[-1]

    yield one
    for server in made:
        server.close()


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self):
        """Return the seconds."""
        return self.now


@pytest.fixture
def sink_of():
    """Make sinks in a TrainJob of a server, and close them at the end."""
    made = []

    def one(server, clock=None, seconds=20.0, **facts):
        made.append(KubeflowSink(address_of("kubeflow://", **facts), server.environ, clock or Clock(), seconds))
        return made[-1]

    yield one
    for sink in made:
        sink.close()


def test_a_report_has_the_shape_of_a_trainjob_status(start, sink_of):
    """Progress in whole percent, remaining seconds as a whole number, values as text, under the metrics' prefix."""
    server = start()
    sink = sink_of(server, prefix="ours/")
    assert sink.open(RUN, {}) == {"link": ""}
    sink.report(NEWS)
    (request,) = server.requests
    assert request["path"] == PATH
    assert request["headers"]["Content-Type"] == "application/json"
    status = json.loads(request["body"])["trainerStatus"]
    assert status.pop("lastUpdatedTime").endswith("Z")
    assert status == {
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 13,
        "metrics": [{"name": "ours/loss", "value": "0.25"}, {"name": "ours/lr", "value": "NaN"}],
    }
    assert isinstance(status["progressPercentage"], int)


def test_reports_come_at_most_every_five_seconds_but_for_the_last(start, sink_of):
    """News within five seconds of a report are left for the next one; the end is reported at once."""
    server, clock = start(), Clock()
    sink = sink_of(server, clock)
    for moment in (100.0, 101.0, 104.9, 105.0, 106.0):
        clock.now = moment
        sink.report(NEWS)
    assert len(server.requests) == 2
    sink.report(RunNews("finished", ended=1_795_000_000.0, progress=0.5, remaining=9.0))
    last = server.bodies()[-1]["trainerStatus"]
    assert last == {
        "lastUpdatedTime": "2026-11-18T11:06:40Z",
        "progressPercentage": 100,
        "estimatedRemainingSeconds": 0,
        "metrics": [],
    }


def test_a_run_that_failed_is_not_complete():
    """The progress of a failed run stays where it was, and nothing remains to be estimated."""
    status = status_of(RunNews("failed", progress=0.5, remaining=9.0), "", 0.0)
    assert status["progressPercentage"] == 50
    assert "estimatedRemainingSeconds" not in status


@pytest.mark.parametrize(
    ("progress", "percent"),
    [(0.29, 29), (0.999, 99), (1.0, 100), (1.7, 100), (-0.1, 0), (math.nan, None), (None, None)],
)
def test_progress_is_a_whole_percentage(progress, percent):
    """Progress is rounded down, stays within 0 and 100, and is left out if unknown."""
    assert status_of(RunNews(progress=progress), "", 0.0).get("progressPercentage") == percent


def test_an_unlikely_estimate_still_fits():
    """A remaining time beyond 32 bits is capped, because Kubeflow would refuse the whole report."""
    assert status_of(RunNews(remaining=1e18), "", 0.0)["estimatedRemainingSeconds"] == 2**31 - 1


def test_a_report_stays_within_kubeflows_limits():
    """At most 256 metrics, names of at most 64 characters that stay distinct, and less than 64 kB in total."""
    found = metrics_of({f"{'损' * 100}{number}": 1.0 for number in range(300)}, "")
    assert max(len(metric["name"]) for metric in found) == 64
    assert len({metric["name"] for metric in found}) == len(found)
    assert len(json.dumps(found)) < 64_000
    assert len(metrics_of({str(number): 1.0 for number in range(300)}, "")) == 256


def test_a_rotated_token_is_used_for_the_next_report(start, sink_of):
    """The token is read from its file for each report."""
    server, clock = start(), Clock()
    sink = sink_of(server, clock)
    sink.report(NEWS)
    server.token.write_text("second-token\n")
    clock.now += 5
    sink.report(NEWS)
    assert server.tokens() == ["Bearer first-token", "Bearer second-token"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_read_again(start, sink_of, status):
    """A server that does not know us denies; the next call presents the token that is in the file by then."""
    server, clock = start(status, 200), Clock()
    sink = sink_of(server, clock)
    with pytest.raises(SinkDeniesError, match=str(status)):
        sink.report(NEWS)
    server.token.write_text("second-token")
    clock.now += 5
    sink.report(NEWS)
    assert server.tokens()[-1] == "Bearer second-token"


def test_a_server_that_asks_to_wait_is_given_time(start, sink_of):
    """429 is an outage with the time that the server asks for; until then no report is made."""
    server, clock = start((429, {"Retry-After": "17"}), 200), Clock()
    sink = sink_of(server, clock)
    with pytest.raises(SinkDownError) as caught:
        sink.report(NEWS)
    assert caught.value.retry_after == 17
    clock.now += 1
    with pytest.raises(SinkDownError) as caught:
        sink.report(NEWS)
    assert caught.value.retry_after == 4
    assert len(server.requests) == 1
    clock.now += 16
    sink.report(NEWS)
    assert len(server.requests) == 2


def test_an_error_of_the_server_is_an_outage(start, sink_of):
    """500 means: again later."""
    with pytest.raises(SinkDownError, match="500"):
        sink_of(start(500)).report(NEWS)


def test_a_report_that_kubeflow_finds_invalid_is_refused(start, sink_of):
    """422 means that the same report would never be taken."""
    with pytest.raises(SinkRefusesError, match="422"):
        sink_of(start(422)).report(NEWS)


def test_a_server_that_hangs_is_left_in_time(start, sink_of):
    """A server that never answers costs the allowed time, and is an outage."""
    server = start("hang")
    sink = sink_of(server, seconds=0.5)
    with pytest.raises(SinkDownError, match="no answer in time"):
        sink.report(NEWS)


def test_a_server_with_a_foreign_certificate_gets_no_token(start, sink_of):
    """Without the authority of the cluster the server is not trusted, and sees no request."""
    server = start()
    server.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"] = ""
    with pytest.raises(SinkDownError, match="certificate is not trusted"):
        sink_of(server).report(NEWS)
    assert server.requests == []


def test_outside_a_trainjob_the_variables_are_named():
    """Probe and open say which variables are missing."""
    sink = new_sink(address_of("kubeflow://"), {})
    for call in (sink.probe, lambda: sink.open(RUN, {})):
        with pytest.raises(SinkDeniesError, match="KUBEFLOW_TRAINER_SERVER_URL and KUBEFLOW_TRAINER_SERVER_TOKEN"):
            call()


def test_a_token_never_travels_in_the_clear(start, sink_of):
    """An address without TLS is denied before anything is sent."""
    server = start()
    server.environ["KUBEFLOW_TRAINER_SERVER_URL"] = f"http://localhost:{server.port}{PATH}"
    with pytest.raises(SinkDeniesError, match="in the clear"):
        sink_of(server).probe()
    assert server.requests == []


@pytest.mark.parametrize("content", [b"", b"two words", b"a\nX-Evil: 1", b"\xff\xfe"])
def test_a_file_without_a_token_is_named_and_not_quoted(start, sink_of, content):
    """A token that is none is denied with the name of its file, and its text is in no message."""
    server = start()
    server.token.write_bytes(content)
    with pytest.raises(SinkDeniesError) as caught:
        sink_of(server).probe()
    assert str(server.token) in str(caught.value)
    assert "words" not in str(caught.value)
    assert "Evil" not in str(caught.value)


def test_a_missing_token_file_is_named(start, sink_of):
    """A token file that is not there yet is denied, and works once it is there."""
    server = start()
    os.unlink(server.token)
    sink = sink_of(server)
    with pytest.raises(SinkDeniesError, match="KUBEFLOW_TRAINER_SERVER_TOKEN"):
        sink.open(RUN, {})
    server.token.write_text("late")
    sink.open(RUN, {})


def test_the_probe_changes_no_status(start, sink_of):
    """The probe presents the token with an empty report, and names the job."""
    server = start()
    assert sink_of(server).probe() == "Kubeflow Trainer, TrainJob team/mnist"
    assert server.bodies() == [{}]


@pytest.mark.parametrize("url", ["kubeflow://host", "kubeflow:///path", "kubeflow://?token=x"])
def test_an_address_with_more_is_refused(url):
    """The address is `kubeflow://` alone."""
    with pytest.raises(UsageError):
        new_sink(address_of(url), {})
