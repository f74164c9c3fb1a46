"""Names of kernels and operators as a sentence has them: without template arguments and parameters."""

from __future__ import annotations

import re

MOST = 80
"""Characters of a name in a sentence."""
SCAN = 4000
"""Characters of a name that are looked at: some have nine lines."""
CLOSING = {"<": ">", "(": ")"}
OPERATORS = re.compile(r"operator(?:<<|>>|<=|>=|<|>|\(\))")


def short_name(name: str, most: int = MOST) -> str:
    """Return a name for people: "at::native::vectorized_elementwise_kernel<…>"; one that is short stays as it is."""
    if len(name) <= most and not name.startswith("void "):
        return name
    text = OPERATORS.sub("operator", name[:SCAN].removeprefix("void ").replace("(anonymous namespace)::", ""))
    kept, depth = [], 0
    for letter in text:
        if letter in CLOSING:
            kept += ["<…>"] if letter == "<" and depth == 0 else []
            depth += 1
        elif letter in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(letter)
    found = "".join(kept).strip() or name
    return found if len(found) <= most else f"{found[: most - 1]}…"
