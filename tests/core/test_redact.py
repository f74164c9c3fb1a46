from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.redact import (
    MAX_TEXT,
    REDACTED,
    jsonable,
    redact,
    redact_argv,
    redact_text,
)

A = "CanaryXq7"
B = "aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA1cD3eF5"

SHAPES = [
    f"hf_{B}",
    f"sk-{B}",
    f"sk-proj-{B}_x-y",
    f"sk-ant-api03-{B}",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    f"xoxb-123456789012-{B}",
    f"xoxp-123456789012-{B}",
    f"ghp_{B}",
    f"gho_{B}",
    f"github_pat_11ABC_{B}",
    f"glpat-{B}",
    f"pypi-AgEIcHlwaS5vcmc{B}",
    f"npm_{B}",
    f"AIzaSy{B}",
    f"ya29.{B}",
    f"eyJhbGciOiJIUzI1NiJ9.{B}.{B}",
    f"SG.{B[:22]}.{B}",
    f"123456789:AA{B}",
    f"sk_live_{B}",
    f"r8_{B}",
    f"gsk_{B}",
    f"nvapi-{B}",
    f"hvs.{B}",
    f"wandb_v1_{B}",
]
"""25 canaries that are secrets by their shape alone."""

TEXTS = [
    f"https://user:{A}@example.com/x",
    f"postgres://{A}@db/train",
    f"postgresql+asyncpg://u:p/{A}@db:5432/train",
    f"Authorization: Bearer {A}.{A}",
    f"curl -H 'authorization: basic {A}='",
    f"https://hooks.slack.com/services/T0/B0/{A}",
    f"https://discord.com/api/webhooks/12/{A}",
    f"https://host/x?a=1&api_key={A}&b=2",
    f"-----BEGIN RSA PRIVATE KEY-----\n{A}\n-----END RSA PRIVATE KEY-----",
    f'{{"client_secret": "{A}", "lr": 1}}',
    f"WANDB_API_KEY={A} python train.py",
    f"python train.py --hf-token {A} --epochs 3",
    f"password: {A}",
    f"DefaultEndpointsProtocol=https;AccountKey={A};x=y",
    f"db_password='two words {A}'",
]
"""15 canaries inside a text."""

SECRET_NAMES = [
    *("api_key", "apiKey", "API-KEY", "openai_key", "wandb_api_key", "aws_access_key_id", "aws_secret_access_key"),
    *("password", "db_passwd", "user_pwd", "smtp_pass", "secret", "clientSecret", "token", "hf_token", "auth_token"),
    *("accessToken", "refresh_tokens", "authorization", "private_key", "ssh_private_key", "credentials", "cookie"),
    *("slack_webhook_url", "connection_string", "encryption_key", "trainer.logger.api_key", "sas_token"),
]

KEPT_NAMES = [
    *("use_cls_token", "max_tokens", "tokenizer", "num_key_value_heads", "key_dim", "pad_token", "eos_token_id"),
    *("token_type_ids", "tokens_per_second", "key_padding_mask", "sort_key", "image_key", "primary_key", "monkey"),
    *("author", "forward_pass", "passes", "tokenizer_path", "mask_token", "num_tokens", "max_new_tokens", "keys"),
    *("qkv_bias", "authors", "compass", "token_dim", "key_proj", "bos_token", "special_tokens", "query_key_norm"),
]


def holds(plain: object) -> bool:
    """Tell whether a canary survived."""
    text = json.dumps(plain)
    return A in text or B in text or "IOSFODNN7" in text


@pytest.mark.parametrize("canary", [*SHAPES, *TEXTS])
def test_forty_canaries(canary):
    """None of 40 planted secrets survives in a text, a value, a list, a key or an argument."""
    assert len({*SHAPES, *TEXTS}) == 40
    planted = {"note": canary, "deep": [{"x": [1, canary]}, (canary,)], canary: 1, "text": f"see {canary} here"}
    assert not holds(redact(planted))
    assert not holds(redact_argv(["train.py", canary, f"--x={canary}", f"x={canary}", "--x", canary]))
    assert not holds(redact(jsonable(SimpleNamespace(note=canary, path=Path(canary)))))


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_names(name):
    """A value under a secret name is hidden in mappings, pairs, options and assignments."""
    assert redact({name: A, "n": {"name": name, "value": A}}) == {
        name: REDACTED,
        "n": {"name": name, "value": REDACTED},
    }
    assert not holds(redact_argv([f"--{name}", A, f"--{name}={A}", f"{name}={A}", f"+x.{name}={A}"]))
    assert not holds(redact_text(f"set {name}={A} and '{name}': '{A}'"))


@pytest.mark.parametrize("name", KEPT_NAMES)
def test_kept_names(name):
    """Names of machine learning that only look like secrets keep their values."""
    assert redact({name: "value"}) == {name: "value"}
    assert redact_argv([f"--{name}", "value", f"{name}=value"]) == [f"--{name}", "value", f"{name}=value"]
    assert redact_text(f"{name}=value, {name}: value") == f"{name}=value, {name}: value"


@pytest.mark.parametrize("value", [None, True, False, "", 3, 0.5, "<pad>", "[CLS]", "</s>", "<|endoftext|>", "12"])
def test_kept_values(value):
    """A token that is absent, a switch, a number or a special token of a vocabulary is no secret."""
    assert redact({"my_token": value}) == {"my_token": value}


def test_numeric_password():
    """A password is hidden even if it is a number or a structure."""
    assert redact({"password": 1234, "secrets": {"a": 1}, "password_file": "/run/x"}) == {
        "password": REDACTED,
        "secrets": REDACTED,
        "password_file": "/run/x",
    }


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/org/repo@v1",
        "see s3://bucket/key and file:///tmp/x",
        "http://host:8080/a@b",
        "sk-learn-contrib-package",
        "Token classification with bert",
        "basic configuration of hf_transfer",
        "0123456789abcdef0123456789abcdef01234567",
        "lr: 3e-4, tokens: 5, epoch=3",
        "meta-llama/Llama-2-7b-hf",
        "",
    ],
)
def test_plain_text_kept(text):
    """Ordinary text, URLs without user-info and git commits stay as they are."""
    assert redact_text(text) == text


def test_option_without_value():
    """An option that follows a secret option is no value of it."""
    assert redact_argv(["--token", "--epochs", "3"]) == ["--token", "--epochs", "3"]


@given(st.text(max_size=300))
def test_any_text(text):
    """Redaction takes any text and changes nothing more when repeated."""
    once = redact_text(text)
    assert redact_text(once) == once


@pytest.mark.parametrize(
    "unit",
    ["a", "a:", "://", "a-b.", "eyJ", "--a b ", "'", 'a="', "bearer ", "sk-", "1", "x://a:b", "token ", "\\", "-"],
)
def test_linear_time(unit):
    """No text makes the search slow: 64 KiB of any repetition take well under a second; a runaway would take hours."""
    start = time.process_time()
    redact_text(unit * (65536 // len(unit)))
    assert time.process_time() - start < 10


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


@dataclasses.dataclass
class Optim:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


class Settings:
    batch = 32
    _hidden = 1

    def __init__(self) -> None:
        self.lr = 0.5

    def method(self) -> None:
        """Is left out."""


class Raises:
    @property
    def __dict__(self):
        raise RuntimeError

    def __str__(self) -> str:
        raise RuntimeError


class Interpolated:
    """A mapping like omegaconf's: one of its items cannot be resolved."""

    def keys(self):
        return ["lr", "missing"]

    def __getitem__(self, key: str) -> float:
        if key == "missing":
            raise KeyError(key)
        return 0.1


class DeviceTensor:
    dtype, shape, device = "float32", (), "cuda:0"

    def tolist(self) -> float:
        pytest.fail("read a tensor on a device")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Optim(), {"lr": 0.1, "betas": [0.9, 0.99]}),
        (argparse.Namespace(a=1, b=Path("/x")), {"a": 1, "b": "/x"}),
        (Settings(), {"batch": 32, "lr": 0.5}),
        (Interpolated(), {"lr": 0.1, "missing": "<unreadable: KeyError>"}),
        (Color.RED, "red"),
        (Color.PAIR, "PAIR"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        (np.zeros((100, 100)), "<ndarray float64 (100, 100)>"),
        (DeviceTensor(), "<DeviceTensor float32 ()>"),
        ([math.nan, math.inf, -math.inf], ["NaN", "Infinity", "-Infinity"]),
        ({1: "a", "1": "b", (1, 2): "c"}, {"1": "a", "1#2": "b", "[1, 2]": "c"}),
        ({"b", "a"}, ["a", "b"]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.namedtuple("P", "x y")(1, 2), {"x": 1, "y": 2}),  # noqa: PYI024
        (b"123", "<3 bytes>"),
        (2**100, "<integer of 101 bits>"),
        ("a\ud800", "a?"),
        (np.dtype("int8"), "int8"),
        (json.dumps, "json.dumps"),
        (Optim, f"{__name__}.Optim"),
        (object(), "<builtins.object>"),
        (Raises(), "<unreadable: RuntimeError>"),
        (np.nan, "NaN"),
    ],
    ids=range(25),
)
def test_jsonable(value, plain):
    """Every kind of configuration object becomes the plain data that its reader expects."""
    assert jsonable(value) == plain
    json.dumps(jsonable(value), allow_nan=False)


def test_cycle():
    """A structure that holds itself ends; one that is only repeated is shown twice."""
    loop: dict[str, object] = {"twice": [[1]] * 2}
    loop["self"] = loop
    assert jsonable(loop) == {"twice": [[1], [1]], "self": "<cycle>"}


def test_caps():
    """Depth, number of values and length of texts are bounded, and what is left out is named."""
    assert jsonable([[[1]]], depth=2) == [["<list>"]]
    assert jsonable(list(range(10)), size=4) == [0, 1, 2, "<more>"]
    assert jsonable({"a": 1, "b": 2, "c": 3}, size=2) == {"a": 1, "<more>": True}
    assert jsonable("x" * 10**6) == "x" * MAX_TEXT + "<cut>"
    assert len(json.dumps(jsonable(["y" * 4000] * 1000))) < 2**20


def test_cut_token():
    """A token across the place where a long text is cut leaves no half of it behind."""
    assert "hf_aB3" not in jsonable("x " * (MAX_TEXT // 2 - 5) + SHAPES[0] + " tail" * 10)


def test_large_is_quick():
    """A configuration of a million entries takes no longer than its caps allow."""
    large = {"big": list(range(10**6)), "text": "z" * 10**7, **{str(index): index for index in range(10**5)}}
    start = time.process_time()
    redact(jsonable(large))
    assert time.process_time() - start < 5


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.one_of(st.text(), st.integers()), inner)),
        max_leaves=20,
    )
)
def test_any_config(value):
    """Whatever the configuration, the result is strict JSON that UTF-8 can hold."""
    told = redact(jsonable(value))
    assert json.loads(json.dumps(told, allow_nan=False, ensure_ascii=False).encode()) == told
