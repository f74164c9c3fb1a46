"""The sinks of the configuration: addresses, names, what they want, and what is wrong with them."""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.address import SCHEMES, SinkAddress, address_of, shown, sinks_of
from stepscope.exporters.sinks.table import SINKS, kind_of

MLFLOW = "mlflow+http://localhost:5000"


def of(*sinks):
    return sinks_of({"exporters.sinks": sinks})


def test_a_sink_is_an_address_or_a_mapping():
    """Names are the kind of the sink, numbered where there are several; other keys have defaults."""
    found, problems = of(MLFLOW, {"url": "mlflow+http://other:1/x", "prefix": "s/", "interval": "1 min"}, "trackio://p")
    assert not problems
    assert [sink.name for sink in found] == ["mlflow", "mlflow-2", "trackio"]
    assert (found[1].prefix, found[1].interval, found[0].interval) == ("s/", 60.0, 0.0)


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ("", "it has no address"),
        (7, "it has no address"),
        ({"name": "x"}, "it has no address"),
        ("http://localhost", "there is no sink http://"),
        ("nonsense", "its address has no scheme that we know"),
        ({"url": MLFLOW, "token": "x"}, "it has the unknown key 'token'"),
        ({"url": MLFLOW, "name": "a/b"}, "'a/b' cannot be its name"),
        ({"url": MLFLOW, "interval": "soon"}, "its interval is 'soon'"),
        ({"url": MLFLOW, "interval": 0.001}, "its interval is 0.001"),
        ({"url": MLFLOW, "interval": "1 h"}, "its interval is '1 h'"),
        ({"url": MLFLOW, "metrics": 3}, "its metrics are no list of names"),
        ({"url": MLFLOW, "metrics": ["a", "a"]}, "it lists 'a' twice"),
        ("mlflow+http://host:99999", "its address is malformed"),
        ("mlflow+http://host:0", "its address has the port 0"),
    ],
)
def test_what_is_wrong_with_a_sink_is_one_sentence_and_the_others_stay(sink, problem):
    """Each problem names the sink by its number, and costs only that sink."""
    found, problems = of(sink, "trackio://p")
    assert [one.name for one in found] == ["trackio"]
    (text,) = problems
    assert text.startswith(f"cannot use sink 1 of exporters.sinks: {problem}")


def test_the_same_address_twice_is_a_mistake():
    """One sink has one state: two with the same address would count for each other."""
    found, problems = of(MLFLOW, {"url": MLFLOW, "name": "again"})
    assert len(found) == 1
    assert "listed twice" in problems[0]


def test_the_key_depends_on_the_place_and_not_on_secrets():
    """A rotated password goes on where the old one stopped; another server begins anew."""
    keys = [address_of(f"mlflow+http://{user}host:1/p").key for user in ("", "a:b@", "a:${PASSWORD}@")]
    assert len(set(keys)) == 1
    assert address_of("mlflow+http://other:1/p").key != keys[0]


def test_neither_repr_nor_messages_hold_a_secret():
    """User, password and options of an address are shown nowhere."""
    address = address_of("prometheus+http://bob:s3cret@host:1/api/v1/write?token=s3cret")
    assert "s3cret" not in repr(address)
    assert shown(address.url) == "prometheus+http://host:1/api/v1/write"
    with pytest.raises(UsageError) as caught:
        address_of("http://bob:s3cret@host/")
    assert "s3cret" not in str(caught.value)


def test_placeholders_are_filled_when_the_address_is_used(tmp_path):
    """Secrets come from the environment or a file; a missing one is named."""
    secret = tmp_path / "token"
    secret.write_text("t0ken\n")
    address = address_of(f"prometheus+https://${{USER_NAME}}@host/w?token=${{file:{secret}}}")
    target = address.target({"USER_NAME": "bob"})
    assert (target.scheme, target.username, target.query) == ("https", "bob", "token=t0ken")
    assert address.options({"USER_NAME": "bob"}, ["token"]) == {"token": "t0ken"}
    with pytest.raises(UsageError, match="the variable USER_NAME is not set"):
        address.target({})
    with pytest.raises(UsageError, match="unknown option 'token'; known are a"):
        address.options({"USER_NAME": "bob"}, ["a"])


@pytest.mark.parametrize(
    ("metrics", "wanted", "left"),
    [
        ((), ["loss", "gpu/0/power_watts"], ["stepscope/rows_total"]),
        (("loss", "gpu/*"), ["loss", "gpu/0/power_watts"], ["lr", "loss2"]),
        (("!gpu/*",), ["loss"], ["gpu/0/power_watts", "stepscope/rows_total"]),
        (("*", "!loss"), ["stepscope/rows_total", "lr"], ["loss"]),
    ],
)
def test_metrics_are_chosen_by_patterns(metrics, wanted, left):
    """By default everything but our own figures is sent."""
    address = SinkAddress("x", "mlflow+http", MLFLOW, metrics)
    assert all(map(address.wants, wanted))
    assert not any(map(address.wants, left))


@pytest.mark.parametrize("scheme", SINKS)
def test_every_scheme_has_a_sink(scheme):
    """The table names classes that exist and know what they are called."""
    assert kind_of(scheme).kind == scheme.partition("+")[0]
    assert tuple(SINKS) == SCHEMES


def test_an_unknown_scheme_is_refused():
    """The message lists what there is."""
    with pytest.raises(UsageError, match="known are wandb, "):
        kind_of("carrier+pigeon")
