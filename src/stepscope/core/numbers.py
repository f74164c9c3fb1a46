"""Format numbers for people: page, terminal, mail and report follow these rules.

Three significant digits with a unit, four without; bytes in powers of 1024, durations in their two largest units,
percentages with a space, and changes beyond a factor of 10 as "60 times". `tests/golden/numbers.json` holds examples
that this module and the page's `format.ts` both pass.
"""

from __future__ import annotations

import math

ABSENT = "-"
DAY, HOUR, MINUTE = 86400, 3600, 60
SPANS = ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s"))
FRACTIONS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SIZES = tuple((1024.0**power, f"{prefix}iB") for power, prefix in enumerate("KMGTPE", 1))[::-1]
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
UNSCALED = 9999.5
"""Counts below this are written out: 1234 samples/s."""
LARGEST = 999.5e12
"""From here on there is no prefix: 2e19."""
SYMBOLS = {"celsius": "°C", "watts": "W", "joules": "J", "hertz": "Hz", "percent": "%"}
BASE_UNITS = {
    "MiB": (2.0**20, "bytes"),
    "GiB": (2.0**30, "bytes"),
    "milliseconds": (1e-3, "seconds"),
    "MiB/second": (2.0**20, "bytes/second"),
}
MANY_TIMES, MOST_TIMES = 10.0, 100_000.0
"""Factors from which a change is no longer a percentage, and from which the text is only "over"."""


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits; powers of ten below 0.001 and from a million on."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3 or size >= 999_999.5:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{_trim(mantissa)}e{int(power)}"
    if size >= 10 ** (digits - 1) - 0.05:
        return f"{value:.0f}"
    return _trim(f"{value:.{digits - 1 - math.floor(math.log10(size))}f}")


def format_value(value: float | None, unit: str = "") -> str:
    """Return a value in the unit that suits it: "21.9 GiB", "34 ms", "91.6 %", "12.3k samples/s"."""
    if value is None or not math.isfinite(value):
        return format_number(value)
    number = float(value)
    factor, unit = BASE_UNITS.get(unit, (1.0, unit))
    number *= factor
    kind, slash, per = unit.partition("/")
    rate = f"/{'s' if per == 'second' else per}" if slash else ""
    if kind == "seconds":
        return format_duration(number) + rate
    if kind == "bytes":
        return format_bytes(number) + rate
    if kind == "ratio":
        return f"{format_number(number * 100, 3)} %{rate}"
    if kind == "percent":
        return f"{format_number(number, 3)} %{rate}"
    if not kind:
        return format_number(number) + rate
    figure, prefix = _scaled(number)
    label = SYMBOLS.get(kind)
    return f"{figure} {prefix}{label}{rate}" if label else f"{figure}{prefix} {kind}{rate}"


def format_short(value: float | None, unit: str = "") -> str:
    """Return a value without its unit, for places where a title names it: "12.3k" of samples per second."""
    if value is None or not math.isfinite(value):
        return format_number(value)
    if not unit or unit in BASE_UNITS or unit.partition("/")[0] in {"seconds", "bytes", "ratio", "percent"}:
        return format_value(value, unit)
    return "".join(_scaled(float(value)))


def format_duration(seconds: float | None) -> str:
    """Return a duration: "34 ms", "2.5 s", "1 h 12 min", "3 d 4 h"."""
    if seconds is None or not math.isfinite(seconds):
        return format_number(seconds)
    size = abs(seconds)
    if size < MINUTE - 0.05:
        smallest = FRACTIONS[-1 if size else 0]
        scale, label = next((step for step in FRACTIONS if size >= step[0] * 0.9995), smallest)
        return f"{format_number(seconds / scale, 3)} {label}"
    sign, whole = "-" if seconds < 0 else "", round(size)
    if whole >= 1000 * DAY:
        return f"{sign}{format_number(whole / DAY, 3)} d"
    scale, label, lower, rest = next(span for span in SPANS if whole >= span[0])
    remainder = whole % scale // lower
    return f"{sign}{whole // scale} {label}" + (f" {remainder} {rest}" if remainder else "")


def format_age(seconds: float) -> str:
    """Return how long ago something was, in one unit: "now", "5 min", "3 h", "12 d"."""
    for factor, unit, _, _ in SPANS:
        if seconds >= factor:
            return f"{int(seconds // factor)} {unit}"
    return "now" if seconds < 5 else f"{int(seconds)} s"


def format_bytes(count: float | None) -> str:
    """Return a size in powers of 1024: "512 B", "21.9 GiB"."""
    if count is None or not math.isfinite(count):
        return format_number(count)
    factor, label = _size_unit(count)
    return f"{format_number(count / factor, 3)} {label}"


def format_portion(used: float | None, total: float | None) -> str:
    """Return a used and a total size in one unit: "22/24 GiB"; the used size alone where the total is unknown."""
    if used is None or not total:
        return format_bytes(used)
    factor, label = _size_unit(total)
    return f"{format_number(used / factor, 3)}/{format_number(total / factor, 3)} {label}"


def format_share(share: float | None) -> str:
    """Return a share in whole percent: "42 %", "<1 %"."""
    if share is None or not math.isfinite(share):
        return format_number(share)
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def format_change(ratio: float | None, *, signed: bool = True) -> str:
    """Return a relative change, new / old - 1: "+3.21 %", and from a factor of 10 on "60 times more" or "less"."""
    if ratio is None or not math.isfinite(ratio):
        return format_number(ratio)
    times = ratio + 1
    if times >= MANY_TIMES:
        return f"{_times(times)} more"
    if 0 < times <= 1 / MANY_TIMES:
        return f"{_times(1 / times)} less"
    if ratio <= -MANY_TIMES:
        return "changed sign"
    size = abs(ratio) * 100
    if size < 0.005:
        return "0 %"
    return f"{ratio * 100:{'+' if signed else ''}.{2 if size < 10 else 1 if size < 100 else 0}f} %"


def format_count(number: int | None) -> str:
    """Return a whole number in groups of three digits: "12 345"."""
    return ABSENT if number is None else f"{number:,}".replace(",", " ")


def format_items(number: int, noun: str, plural: str = "s") -> str:
    """Return a number of things: "1 run", "1 024 runs"."""
    return f"{format_count(number)} {noun}{'' if number == 1 else plural}"


def format_money(amount: float | None) -> str:
    """Return an amount of money: two decimals, or enough digits to show that it is not zero."""
    if amount is None or not math.isfinite(amount):
        return format_number(amount)
    if abs(amount) >= 100_000:
        return format_number(amount)
    if abs(amount) >= 0.1 or amount == 0:
        return f"{amount:.2f}"
    return f"{amount:.2g}" if abs(amount) >= 1e-4 else "<0.0001"


def _times(factor: float) -> str:
    if factor >= MOST_TIMES:
        return f"over {format_count(int(MOST_TIMES))} times"
    return f"{format_count(round(factor))} times"


def _size_unit(count: float) -> tuple[float, str]:
    return next((unit for unit in SIZES if abs(count) >= unit[0] * 0.9995), (1.0, "B"))


def _scaled(number: float) -> tuple[str, str]:
    """Return the figure of a count and its SI prefix, which is empty below 10 000 and beyond the largest prefix."""
    size = abs(number)
    if size < UNSCALED or size >= LARGEST:
        return format_number(number, 3), ""
    factor, prefix = next(step for step in PREFIXES if size >= step[0] * 0.9995)
    return format_number(number / factor, 3), prefix


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
