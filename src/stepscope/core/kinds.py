"""Settings and the kinds of their values: how a value is read from YAML, JSON or Python, and shown again.

A parser takes any object and returns plain data, or raises ValueError with a phrase that completes
"'<key>' is <value>, ". Words are understood where a value of that kind is asked for and nowhere else:
``off`` is false for a switch and stays the word "off" for a text.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

MIB = 1 << 20
GIB = 1 << 30

AUTO = "auto"
MAX_DEPTH = 20
"""Levels of nesting beyond which a value is refused."""
PERCENT = 100
LEAST_PERCENT = 2
"""Plain number from which on a share can only be meant as percent."""
MOST_RISE = 3
"""Plain number up to which a growth can only be meant as a fraction."""
SHOWN_CHARACTERS = 40
SHOWN_BITS = 128
"""Longer texts and integers are cut in messages."""

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z%]*)\s*", re.ASCII)
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SECONDS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    "ms": 0.001,
}
_BYTES = {unit: 1 << 10 * power for power, sign in enumerate("bkmgt") for unit in (sign, f"{sign}b", f"{sign}ib")}
_BYTES |= {"": 1, "byte": 1, "bytes": 1}
_ANY_UNIT = {unit: size for unit, size in {**_SECONDS, **_BYTES}.items() if len(unit) != 1 or unit in {"s", "h", "b"}}
_ANY_UNIT["%"] = 1 / PERCENT


class ValueKind(NamedTuple):
    """One kind of value."""

    name: str
    parse: Callable[[object], object]
    """Return the value as plain data, or raise ValueError."""
    unit: str = ""
    """Unit of the parsed value, or "" where it has none."""
    show: Callable[[object], str] = json.dumps
    """Return the value as YAML text on one line."""

    def of(self, unit: str) -> ValueKind:
        """Return this kind for values in another unit, such as a number of steps."""
        return self._replace(unit=unit)


class Key(NamedTuple):
    """One setting."""

    path: str
    kind: ValueKind
    default: Any
    help: str
    """One line for people."""
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False
    """The value is never shown in messages."""

    def parse(self, value: object) -> object:
        """Return the value as plain data, or raise ValueError with the problem."""
        parsed = self.kind.parse(value)
        low, high = self.minimum, self.maximum
        if isinstance(parsed, (int, float)):
            if low is not None and parsed < low:
                raise ValueError(f"below the least allowed, {self.kind.show(low)}")
            if high is not None and parsed > high:
                raise ValueError(f"above the most allowed, {self.kind.show(high)}")
        return parsed


def parse_switch(value: object) -> bool:
    """Return a boolean from a boolean or one of the words true, false, yes, no, on, off."""
    word = _WORDS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(word, bool):
        raise ValueError("not true or false")  # noqa: TRY004 - one exception type for every kind
    return word


def parse_auto_switch(value: object) -> bool | str:
    """Return a boolean as `parse_switch` does, or the word auto."""
    if isinstance(value, str) and value.lower() == AUTO:
        return AUTO
    try:
        return parse_switch(value)
    except ValueError:
        raise ValueError("not true, false or auto") from None


def parse_integer(value: object) -> int:
    """Return a whole number, also from text such as "8080" or from 1000.0."""
    number = _number(value, "not a whole number")
    if isinstance(number, float):
        if not number.is_integer():
            raise ValueError("not a whole number")
        return int(number)
    return number


def parse_float(value: object) -> float:
    """Return a finite number, also from text: other YAML readers hand on ``1e-8`` as text."""
    return float(_number(value, "not a number"))


def parse_text(value: object) -> str:
    """Return text unchanged."""
    if not isinstance(value, str):
        raise ValueError("not a text")  # noqa: TRY004 - one exception type for every kind
    return str(value)


def parse_path(value: object) -> str:
    """Return a path as text, with `~` replaced; it may not be empty or hold a NUL."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError("not a path")
    return os.path.expanduser(text)


def parse_duration(value: object) -> float:
    """Return seconds from a number of seconds, "250 ms", "10s", "5min", "2h" or "30 days"."""
    return float(_quantity(value, _SECONDS, "not a duration such as 10, 10s, 5min or 2h"))


def parse_size(value: object) -> int:
    """Return bytes from a number of bytes, "8 MiB" or "100GB" (as in the field, GB means 2**30)."""
    return round(_quantity(value, _BYTES, "not a size such as 4194304, 8 MiB or 100GB"))


def parse_gibibytes(value: object) -> float:
    """Return GiB from a number of GiB or from a size with a unit, as in "500 MB"."""
    has_unit = isinstance(value, str) and value.strip()[-1:].isalpha()
    return parse_size(value) / GIB if has_unit else float(_non_negative(_number(value, "not a size in GiB")))


def parse_fraction(value: object) -> float:
    """Return a share from 0 to 1: 0.9, "90%", or 90, which can only be percent.

    A plain number between 1 and 2 is refused: it could be 150 % or 1.5 %.
    """
    hint = "not a fraction (0 to 1) or a percentage (2 to 100, or any with a % sign)"
    number, is_percent = _share(value, hint)
    if not 0 <= number <= PERCENT or (not is_percent and 1 < number < LEAST_PERCENT):
        raise ValueError(hint)
    return number / PERCENT if is_percent or number > 1 else number


def parse_rise(value: object) -> float:
    """Return a relative growth, which may exceed 1: 0.1 and "10%" are a tenth, 1.5 and "150%" one and a half times.

    A plain number above 3 is refused: it may be meant as percent.
    """
    hint = f"not a growth as a fraction (0 to {MOST_RISE}) or with a % sign: 10 % is 0.1 or '10%', 500 % is '500%'"
    number, is_percent = _share(value, hint)
    if number < 0 or (not is_percent and number > MOST_RISE):
        raise ValueError(hint)
    return number / PERCENT if is_percent else number


def _share(value: object, hint: str) -> tuple[float, bool]:
    """Return a number as written, and whether a percent sign follows it."""
    is_percent = isinstance(value, str) and value.rstrip().endswith("%")
    return float(_quantity(value, {"": 1.0, "%": 1.0}, hint)), is_percent


def parse_measure(value: object) -> float:
    """Return a figure in its base unit: a number, or one with a unit, as in "200 ms", "8 GiB" or "45%"."""
    return float(_scaled(value, _ANY_UNIT, "not a number, or one with a unit such as 200 ms, 8 GiB or 45%"))


def parse_plain(value: object, depth: int = 0) -> object:
    """Return plain data (what JSON can hold) with lists as tuples; anything else is refused."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, numbers.Real):
        return _number(value, "not a finite number")
    if isinstance(value, (list, tuple)):
        return tuple(parse_plain(item, depth + 1) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): parse_plain(item, depth + 1) for key, item in value.items()}
    raise ValueError("not plain data (numbers, texts, lists, mappings)")


def list_of(parse: Callable[[object], T], refusal: str) -> Callable[[object], tuple[T, ...]]:
    """Return a parser of lists, which reads each item with `parse` and refuses anything but a list with `refusal`."""

    def parse_list(value: object) -> tuple[T, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError(refusal)  # noqa: TRY004 - one exception type for every kind
        return tuple(parse(item) for item in value)

    return parse_list


def show_size(value: object) -> str:
    """Return bytes in the largest binary unit that divides them."""
    size = parse_integer(value)
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return str(size)


def describe(value: object) -> str:
    """Return a short text for a value in a message; never longer than a line, never raises."""
    if type(value) is str:
        return repr(value if len(value) <= SHOWN_CHARACTERS else value[: SHOWN_CHARACTERS - 3] + "...")
    if type(value) in (bool, float) or (type(value) is int and value.bit_length() < SHOWN_BITS):
        return repr(value)
    return f"a {type(value).__name__}"


def _number(value: object, hint: str) -> int | float:
    if isinstance(value, str) and re.fullmatch(rf"\s*{_NUMBER}\s*", value, re.ASCII):
        value = float(value) if re.search(r"[.eE]", value) or len(value) > SHOWN_CHARACTERS else int(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(hint)  # noqa: TRY004 - one exception type for every kind
    try:
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        finite = math.isfinite(number)
    except (TypeError, OverflowError) as error:
        raise ValueError(hint) from error
    if not finite:
        raise ValueError(hint)
    return number


def _scaled(value: object, units: Mapping[str, float], hint: str) -> float:
    """Return a number times its unit."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return _number(value, hint)
    factor = units.get(match[2].lower())
    if factor is None:
        raise ValueError(hint)
    return _number(match[1], hint) * factor


def _quantity(value: object, units: Mapping[str, float], hint: str) -> float:
    return _non_negative(_scaled(value, units, hint))


def _non_negative(number: float) -> float:
    if not 0 <= number < math.inf:
        raise ValueError("negative or too large")
    return number


SWITCH = ValueKind("switch", parse_switch)
AUTO_SWITCH = ValueKind("switch or auto", parse_auto_switch)
INTEGER = ValueKind("integer", parse_integer)
FLOAT = ValueKind("number", parse_float)
TEXT = ValueKind("text", parse_text)
PATH = ValueKind("path", parse_path)
DURATION = ValueKind("duration", parse_duration, "seconds")
SIZE = ValueKind("size", parse_size, "bytes", show_size)
GIBIBYTES = ValueKind("size in GiB", parse_gibibytes, "GiB")
FRACTION = ValueKind("fraction", parse_fraction, "fraction")
RISE = ValueKind("growth", parse_rise, "fraction")
MEASURE = ValueKind("number or quantity", parse_measure)
TEXTS = ValueKind("list of texts", list_of(parse_text, "not a list of texts"))
INTEGERS = ValueKind("list of integers", list_of(parse_integer, "not a list of whole numbers"))
LIST = ValueKind("list", list_of(parse_plain, "not a list"))
