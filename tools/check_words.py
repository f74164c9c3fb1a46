"""Refuse phrases that were replaced by plain English: `python tools/check_words.py [REPOSITORY]`.

Each phrase comes with the better word. The areas are the guides (README, changelog, docs), the reference pages, the
package and the page's source. Code in Markdown is not read: names and printed output are checked where they are made.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from sources import Finding, report, root_argument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AREAS = {
    "guides": ("README.md", "CHANGELOG.md", "docs/*.md", "docs/start/*.md", "docs/howto/*.md", "docs/concepts/*.md"),
    "reference": ("docs/reference/*.md", "CONTRIBUTING.md", "SECURITY.md"),
    "package": ("src/stepscope/**/*.py", "src/stepscope/**/*.[ch]"),
    "page": ("web/src/**/*.ts", "web/*.html"),
}
"""Files of each area, as patterns below the root."""

PHRASES = {
    "anew": "again",
    "once more(?! is)": "again",
    "besides|beside that": "also, in addition",
    "alike": "the same way, both, equally",
    "for want of": "because there is no",
    r"reckon\w*": "compute, estimate",
    "whoever": "anyone who; better: name the person or process",
    "that is none(?! of)": "an invalid …",
    "(?:brings?|comes?) home": "recovers",
    "a (?:line|row|object) a (?:point|step)": "one line per point",
    "therein|of such(?=[;,.)])": "(rewrite the sentence)",
    "in a rhythm": "periodic, at regular intervals",
    "nobody knows|is not known|are not known": "unknown, unavailable",
    "gives? way(?! to)": "is dropped",
    "is given back": "is freed",
    "that there is not": "missing",
    "by (?:means|hand) of": "with, using",
    "(?:is|are|was|were|be|been|being) told": "report, show, detect, warn, notify, print",
    "told (?:by|as|of|with)": "report, show, detect, warn, notify, print",
    "tells? (?:nobody|somebody|whether|how)": "report, show, detect, print",
    "(?:is|are|was|were) said": "report, print",
    "what a call returned for": "the row",
    "cry wolf": "raise false alarms",
    "all the same": "anyway",
    "somebody": "someone; better: name the person or process",
    "in silence": "silently",
    r"stretch(?:es)?": "interval, span",
}
"""Phrases, as regular expressions whose spaces match any gap, and what to write instead."""

CITATIONS = {
    r"(?:rules?|figure|promise) [SFGX]-?\d+": "say the reason in words",
    r"(?-i:\b(?:S\d|X)-\d{2,3}\b|\([FG]\d{1,2}\))": "say the reason in words",
    "the documents": "name the guide, or say compatibility",
    "design, section": "say the reason in words",
    "NeMo RL": "Stepscope: no other project's name signs our texts",
}
"""References to texts that are not in this repository."""

PENDING: dict[str, tuple[str, ...]] = {
    "stretch(?:es)?": ("package",),  # a key in the facts of findings, which keeps its name
}
"""Phrases that an area still has, by phrase: the edit of the area takes them off this table."""

GAP = r"""(?:[\s#*/]|"\s*f?")+"""
FENCE = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def pattern_of(phrase: str) -> re.Pattern[str]:
    """Return the expression that finds a phrase, also across the lines of a comment or a split string."""
    return re.compile(rf"(?<!\w)(?:{phrase.replace(' ', GAP)})(?!\w)", re.IGNORECASE)


def prose(path: Path) -> str:
    """Return the text of a file; of Markdown without code and addresses, with its line numbers kept."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return FENCE.sub(lambda part: "\n" * part[0].count("\n"), text)
    return text


def findings_of(path: Path, area: str) -> Iterator[Finding]:
    """Yield each refused phrase of one file."""
    text = prose(path)
    for phrase, better in {**PHRASES, **CITATIONS}.items():
        if area in PENDING.get(phrase, ()):
            continue
        for match in pattern_of(phrase).finditer(text):
            found = " ".join(re.findall(r"[\w,'()-]+", match[0]))
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(path, line, f'do not write "{found}"; write: {better}')


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file that is read, with its area."""
    for area, patterns in AREAS.items():
        for pattern in patterns:
            yield from ((area, path) for path in sorted(root.glob(pattern)))


def main(argv: list[str]) -> int:
    """Check the repository and return the exit code."""
    root = root_argument(argv)
    files = list(files_of(root))
    findings = [finding for area, path in files for finding in findings_of(path, area)]
    return report(findings, f"{len(files)} files in plain English", root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
