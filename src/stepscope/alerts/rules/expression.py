"""The language of alert conditions: parsed into a small tree, never evaluated as Python.

    mean(loss, 100) > 1.1 * baseline(loss, 500, 100)
    gpu/*/memory_used_bytes / gpu/*/memory_total_bytes > 95%
    max(cpu/iowait_ratio, 60s) > 0.3 and not finite(loss)

A `/` between two words without a space belongs to a metric's name; with spaces it divides. Names with other characters
are quoted. Windows are points (`100`), `100 steps`, or time (`30s`, `5m`, `2h`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_CHARACTERS = 4096
MOST_DEPTH = 32
MOST_PARTS = 300
"""Maximum number of words, numbers and signs of a condition."""
MOST_POINTS = 8192
"""Points of the longest window; the engine keeps as many of each series."""
MOST_SECONDS = 7 * 86400.0

NUMBER, TRUTH = "a number", "a condition"
COMPARISONS = (">=", "<=", "==", "!=", ">", "<")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
POINTS, STEPS, TIME = "points", "steps", "seconds"


class ExpressionError(ValueError):
    """The problem of a condition; completes "the condition …"."""


class RuleWindow(NamedTuple):
    """The window of a function."""

    size: float
    unit: str
    """points, steps or seconds."""

    def __str__(self) -> str:
        """Return the window as people write it."""
        return f"{self.size:g} s" if self.unit == TIME else f"{self.size:g} {self.unit}"


@dataclass(frozen=True)
class NumberNode:
    """A number as written; 90% is 0.9."""

    value: float


@dataclass(frozen=True)
class MetricNode:
    """The values of a metric; a `*` in its name is one instance, the same everywhere in a condition."""

    name: str


@dataclass(frozen=True)
class CallNode:
    """A function over the window of a series, or of one value."""

    name: str
    of: Node
    windows: tuple[RuleWindow, ...] = ()
    share: float = 0.0
    """For percentile: 0 to 100."""


@dataclass(frozen=True)
class OperationNode:
    """An operator on one or two operands: arithmetic, comparison, and, or, not."""

    sign: str
    operands: tuple[Node, ...]


Node = NumberNode | MetricNode | CallNode | OperationNode

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?P<unit>%|\s*(?:steps?|points?)\b|(?:ms|s|min|m|h|d)\b)?
    |(?P<quoted>"[^"]{1,256}"|'[^']{1,256}')
    |(?P<name>[A-Za-z_][\w.]*(?:/(?:\*|[\w.*]+))*)
    |(?P<sign>>=|<=|==|!=|[-+*/()<>,])
    )""",
    re.VERBOSE | re.ASCII,
)


class Function(NamedTuple):
    """The signature of a function, for the parser and for its row in the documentation."""

    windows: int
    """Maximum number of windows; only those with a default may be omitted."""
    defaults: tuple[RuleWindow, ...]
    gives: str
    text: str


def _points(count: int) -> RuleWindow:
    return RuleWindow(count, POINTS)


FUNCTIONS: dict[str, Function] = {
    "last": Function(0, (), NUMBER, "the newest value"),
    "mean": Function(1, (), NUMBER, "mean of the window's finite values"),
    "median": Function(1, (), NUMBER, "median of them"),
    "min": Function(1, (), NUMBER, "lowest of them"),
    "max": Function(1, (), NUMBER, "highest of them"),
    "sum": Function(1, (), NUMBER, "their sum"),
    "std": Function(1, (), NUMBER, "their standard deviation (of the population)"),
    "count": Function(1, (), NUMBER, "how many values the window holds, also of one that is not full yet"),
    "percentile": Function(1, (), NUMBER, "`percentile(x, 95, 100)`: the value below which 95 % of the window lie"),
    "slope": Function(1, (), NUMBER, "slope of the least-squares line: per step, per second in a window of time"),
    "rate": Function(1, (), NUMBER, "growth per second of a counter over the window; a reset counts as a start at 0"),
    "zscore": Function(1, (_points(100),), NUMBER, "distance from the mean of the window before it, in its deviations"),
    "baseline": Function(
        2,
        (_points(200), _points(20)),
        NUMBER,
        "`baseline(x, 200, 20)`: median of the 200 points that ended 20 points ago; fixed while an alert fires",
    ),
    "first": Function(
        2, (_points(20), _points(10)), NUMBER, "`first(x, 20, 10)`: median of the run's first 20 points after 10"
    ),
    "highest": Function(0, (), NUMBER, "highest value since the run began"),
    "lowest": Function(0, (), NUMBER, "lowest value since the run began"),
    "abs": Function(0, (), NUMBER, "the value without its sign"),
    "finite": Function(0, (), TRUTH, "whether the newest value is neither NaN nor infinite"),
}
"""All functions: nothing else can be called."""
IN_POINTS = frozenset({"zscore", "baseline", "first"})
"""Functions whose windows are points."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int
    unit: str = ""


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise ExpressionError(f"has {text[at:].strip()[:12]!r} at character {at + 1}, which means nothing here")
        kind = "number" if found["number"] else found.lastgroup or ""
        yield _Token(kind, found[kind], found.start(kind), (found["unit"] or "").strip())
        at = found.end()


def parse(text: str) -> Node:
    """Return the tree of a condition; if it is invalid, the ExpressionError has the position and the problem."""
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(f"is longer than {MOST_CHARACTERS} characters")
    tokens = list(islice(_tokens(text), MOST_PARTS + 1))
    if len(tokens) > MOST_PARTS:
        raise ExpressionError(f"has more than {MOST_PARTS} parts")
    parser = _Parser(tokens)
    node = parser.either()
    parser.done()
    if kind_of(node) is not TRUTH:
        raise ExpressionError("is a number and not a condition: compare it with something, as in 'loss > 10'")
    if not metrics_of(node):
        raise ExpressionError("names no metric")
    return node


def kind_of(node: Node) -> str:
    """Return whether a node is a number or a condition."""
    if isinstance(node, CallNode):
        return FUNCTIONS[node.name].gives
    is_truth = isinstance(node, OperationNode) and node.sign in {*COMPARISONS, "and", "or", "not"}
    return TRUTH if is_truth else NUMBER


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and everything below it, in the written order."""
    yield node
    if isinstance(node, CallNode):
        yield from walk(node.of)
    elif isinstance(node, OperationNode):
        for operand in node.operands:
            yield from walk(operand)


def metrics_of(node: Node) -> list[str]:
    """Return the names of the metrics in a condition, each once, in order."""
    return list(dict.fromkeys(part.name for part in walk(node) if isinstance(part, MetricNode)))


class _Parser:
    """Recursive descent over the tokens; every level of nesting is counted."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def done(self) -> None:
        token = self._peek()
        if token is not None:
            hint = ": join two comparisons with 'and'" if token.text in COMPARISONS else ""
            raise ExpressionError(f"goes on with {token.text!r} at character {token.at + 1} after it is complete{hint}")

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> _Token:
        token = self._peek()
        if token is None:
            raise ExpressionError("ends too early")
        self._at += 1
        return token

    def _take(self, *texts: str) -> str:
        token = self._peek()
        if token is None or token.kind not in {"sign", "name"} or token.text not in texts:
            return ""
        self._at += 1
        return token.text

    def _expect(self, text: str) -> None:
        if not self._take(text):
            token = self._peek()
            found = f"{token.text!r} at character {token.at + 1}" if token else "its end"
            raise ExpressionError(f"has {found} where {text!r} belongs")

    def either(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ExpressionError(f"is nested deeper than {MOST_DEPTH} levels")
        node = self._chain(self._both, _logic, "or")
        self._depth -= 1
        return node

    def _chain(self, part: Callable[[], Node], join: Callable[[str, Node, Node], Node], *signs: str) -> Node:
        node = part()
        while sign := self._take(*signs):
            node = join(sign, node, part())
        return node

    def _both(self) -> Node:
        return self._chain(self._negated, _logic, "and")

    def _negated(self) -> Node:
        negations = 0
        while self._take("not"):
            negations += 1
        node = self._comparison()
        for _ in range(2 - negations % 2 if negations else 0):  # a long chain must not nest deeply
            node = _logic("not", node)
        return node

    def _comparison(self) -> Node:
        node = self._sum()
        sign = self._take(*COMPARISONS)
        return _arithmetic(sign, node, self._sum()) if sign else node

    def _sum(self) -> Node:
        return self._chain(self._product, _arithmetic, "+", "-")

    def _product(self) -> Node:
        return self._chain(self._signed, _arithmetic, "*", "/")

    def _signed(self) -> Node:
        minus = 0
        while sign := self._take("-", "+"):
            minus += sign == "-"
        node = self._atom()
        return _arithmetic("-", NumberNode(0.0), node) if minus % 2 else node

    def _atom(self) -> Node:
        token = self._next()
        if token.kind == "number":
            return _number(token)
        if token.kind == "quoted":
            return MetricNode(token.text[1:-1])
        if token.text == "(":
            node = self.either()
            self._expect(")")
            return node
        if token.kind == "name" and token.text not in {"and", "or", "not"}:
            return self._call(token.text) if self._take("(") else MetricNode(token.text)
        raise ExpressionError(f"has {token.text!r} at character {token.at + 1} where a value belongs")

    def _call(self, name: str) -> Node:
        if name not in FUNCTIONS:
            raise ExpressionError(f"calls {name!r}, which is no function{_near(name)}")
        of = self.either()
        if kind_of(of) is not NUMBER:
            raise ExpressionError(f"gives {name}() a condition where a number belongs")
        if any(isinstance(part, CallNode) and part.name != "abs" for part in walk(of)):
            raise ExpressionError(f"has a function inside {name}(); a window is taken of metrics and their arithmetic")
        rest: list[_Token] = []
        while self._take(","):
            given = self._next()
            if given.kind != "number":
                raise ExpressionError(f"has {given.text!r} in {name}() where a window such as 100 or 30s belongs")
            rest.append(given)
        self._expect(")")
        return _called(name, of, rest)


def _called(name: str, of: Node, rest: list[_Token]) -> CallNode:
    function = FUNCTIONS[name]
    share = 0.0
    if name == "percentile":
        if len(rest) != 2:
            raise ExpressionError("needs a share and a window in percentile(), as in percentile(loss, 95, 100)")
        share = float(rest.pop(0).text)
        if not 0 <= share <= 100:
            raise ExpressionError(f"asks for percentile {share:g}; it is 0 to 100")
    if not function.windows and not metrics_of(of):
        raise ExpressionError(f"takes {name}() of no metric")
    if len(rest) > function.windows or len(rest) + len(function.defaults) < function.windows:
        wanted = "a window, as in 100, 100 steps or 30s" if function.windows else "no window"
        raise ExpressionError(f"needs {wanted} in {name}()")
    windows = [_window(token) for token in rest]
    windows += function.defaults[len(windows) :]
    if name in IN_POINTS and any(window.unit != POINTS for window in windows):
        raise ExpressionError(f"counts the window of {name}() in points; give it plain numbers")
    return CallNode(name, of, tuple(windows), share)


def _number(token: _Token) -> NumberNode:
    if token.unit and token.unit != "%":
        raise ExpressionError(f"has {token.text}{token.unit} outside a window")
    return NumberNode(float(token.text) / 100 if token.unit else float(token.text))


def _window(token: _Token) -> RuleWindow:
    size = float(token.text)
    unit = token.unit.rstrip("s") if token.unit not in {"s", "ms"} else token.unit
    if unit in SECONDS:
        seconds = size * SECONDS[unit]
        if not 0 < seconds <= MOST_SECONDS:
            raise ExpressionError(f"has a window of {size:g}{token.unit}; the longest is {MOST_SECONDS / 86400:g} d")
        return RuleWindow(seconds, TIME)
    kind, most = (STEPS, 10**9) if unit == "step" else (POINTS, MOST_POINTS)
    if token.unit == "%" or not size.is_integer() or not 0 <= size <= most:
        raise ExpressionError(f"has a window of {token.text}{token.unit}; it is a whole number up to {most}")
    return RuleWindow(size, kind)


def _arithmetic(sign: str, left: Node, right: Node) -> OperationNode:
    if kind_of(left) is not NUMBER or kind_of(right) is not NUMBER:
        hint = "join two comparisons with 'and'" if sign in COMPARISONS else "compare numbers first"
        raise ExpressionError(f"applies {sign!r} to a condition; {hint}")
    return OperationNode(sign, (left, right))


def _logic(sign: str, *operands: Node) -> OperationNode:
    if any(kind_of(operand) is not TRUTH for operand in operands):
        raise ExpressionError(f"applies {sign!r} to a number; compare it with something first")
    return OperationNode(sign, operands)


def _near(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, FUNCTIONS, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(FUNCTIONS)}"
