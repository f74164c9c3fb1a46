"""A message as an HTML mail: a bar in the colour of the severity, the fact, what to do, and the evidence in grey.

Mail programs drop style sheets, so each element carries its own style. Colours are legible on white and on black.
"""

from __future__ import annotations

from html import escape
from textwrap import dedent
from typing import TYPE_CHECKING

from stepscope.alerts.delivery.message import MOST_SHOWN, count_by_rule, describe_alert, footer_of

if TYPE_CHECKING:
    from stepscope.alerts.delivery.message import Message, ReadableAlert

FONT = "font:15px/1.45 -apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;max-width:640px"
COLOURS = {"critical": "#d1410c", "warning": "#b07800", "resolved": "#0b8457"}
GREY = "#7a828c"


def mail_of(message: Message) -> str:
    """Return the body as HTML: every text escaped, links only to the page of the configuration."""
    parts = [_alert(describe_alert(event, message.subject)) for event in message.events[:MOST_SHOWN]]
    rest = message.events[MOST_SHOWN:]
    if rest:
        parts.append(f"<p>and {len(rest)} more: {escape(count_by_rule(rest))}</p>")
    told = message.last_lines.shown()
    if told:
        lines = escape(dedent("\n".join(told[1:])))  # the text of a mail is made from this, without leading blanks
        parts.append(f'<p><b>{escape(told[0])}</b></p><pre style="font-size:12px;overflow:auto">{lines}</pre>')
    run, details = map(escape, footer_of(message.subject))
    link = f'<a href="{details}">{details}</a>' if message.subject.page else details
    parts.append(f'<p style="color:{GREY};font-size:13px">{run}<br>{link}</p>')
    return f'<div style="{FONT}">{"".join(parts)}</div>'


def _alert(alert: ReadableAlert) -> str:
    colour = COLOURS.get(alert.severity, GREY)
    lines = [f'<b style="color:{colour}">{escape(alert.severity)}:</b> <b>{escape(alert.fact)}</b>']
    if alert.remedy:
        lines.append(f"<b>What to do:</b> {escape(alert.remedy)}")
    small = "<br>".join(escape(line) for line in (f"Rule: {alert.place}", alert.evidence) if line)
    lines.append(f'<span style="color:{GREY};font-size:13px">{small}</span>')
    return f'<p style="border-left:4px solid {colour};padding-left:12px;margin:0 0 20px">{"<br>".join(lines)}</p>'
