"""The schema, and the kinds of values."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import count

import numpy as np
import pytest

from stepscope.core.kinds import (
    DURATION,
    FLOAT,
    FRACTION,
    GIBIBYTES,
    INTEGER,
    LIST,
    PATH,
    RISE,
    SIZE,
    SWITCH,
    TEXT,
    describe,
)
from stepscope.core.settings import IMPLICATIONS, KEYS, SECTIONS
from stepscope.core.spellings import ALIASES


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.path)
def test_every_key_is_complete(key):
    """Each key lies in a section, has one line of help, and its default is valid and already plain."""
    assert key.path.partition(".")[0] in SECTIONS
    assert key.help
    assert "\n" not in key.help
    assert key.parse(key.default) == key.default


def test_every_alias_and_implication_leads_to_a_key():
    """No spelling leads nowhere, and none hides a key."""
    targets = [alias.target for alias in ALIASES.values()]
    implied = [path for rule in IMPLICATIONS for path in (rule.path, *rule.implied)]
    assert set(targets + implied) <= set(KEYS)
    assert not set(ALIASES) & set(KEYS)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (SWITCH, True, True),
        (SWITCH, "Off", False),
        (SWITCH, "yes", True),
        (TEXT, "no", "no"),
        (INTEGER, "8080", 8080),
        (INTEGER, 1000.0, 1000),
        (INTEGER, np.int64(3), 3),
        (FLOAT, "1e-8", 1e-8),
        (FLOAT, np.float32(0.5), 0.5),
        (DURATION, 10, 10.0),
        (DURATION, "250 ms", 0.25),
        (DURATION, "10s", 10.0),
        (DURATION, "5min", 300.0),
        (DURATION, "2h", 7200.0),
        (SIZE, 4096, 4096),
        (SIZE, "8 MiB", 8 << 20),
        (SIZE, "100GB", 100 << 30),
        (SIZE, "1.5k", 1536),
        (GIBIBYTES, 100, 100.0),
        (GIBIBYTES, "512 MB", 0.5),
        (FRACTION, 0.9, 0.9),
        (FRACTION, 90, 0.9),
        (FRACTION, "90%", 0.9),
        (FRACTION, "0.5 %", 0.005),
        (FRACTION, 1.0, 1.0),
        (FRACTION, 100, 1.0),
        (FRACTION, "1.5%", 0.015),
        (FRACTION, 2, 0.02),
        (RISE, 0.1, 0.1),
        (RISE, 1.5, 1.5),
        (RISE, "150%", 1.5),
        (RISE, 2, 2.0),
        (PATH, "a/b", "a/b"),
        (LIST, [1, {"a": [2]}], (1, {"a": (2,)})),
    ],
)
def test_kinds_accept(kind, given, expected):
    """Each kind reads what people write for it."""
    assert kind.parse(given) == expected
    assert type(kind.parse(given)) is type(expected)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (SWITCH, 1),
        (SWITCH, "maybe"),
        (INTEGER, True),
        (INTEGER, 1.5),
        (INTEGER, "x"),
        (INTEGER, math.inf),
        (FLOAT, "nan"),
        (FLOAT, 10**400),
        (FLOAT, "9" * 5000),
        (FLOAT, Decimal(1)),
        (DURATION, -1),
        (DURATION, "5 parsecs"),
        (DURATION, "1e308 d"),
        (SIZE, "-1 MB"),
        (SIZE, [1]),
        (FRACTION, -0.1),
        (FRACTION, 101),
        (FRACTION, "150%"),
        (FRACTION, 1.5),
        (RISE, 10),
        (RISE, -0.1),
        (PATH, ""),
        (PATH, "a\0b"),
        (TEXT, 3),
        (LIST, "abc"),
        (LIST, [object()]),
    ],
    ids=count(),
)
def test_kinds_refuse(kind, given):
    """Nonsense is a ValueError with a text, never another exception."""
    with pytest.raises(ValueError, match=r"\w"):
        kind.parse(given)


@pytest.mark.parametrize("value", ["x" * 10_000, 10**5000, object(), [1], 1.5, "\ud800"], ids=range(6))
def test_describe_is_short_and_never_raises(value):
    """A message shows any value in a few words."""
    assert len(describe(value)) < 60
