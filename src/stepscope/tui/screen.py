"""Draw a whole screen of any size as plain data, from a scene and the view options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.terminal_text import plain
from stepscope.tui.draw_alerts import alerts_view
from stepscope.tui.draw_graphs import metrics_view
from stepscope.tui.draw_head import keys, tabs, title
from stepscope.tui.draw_machine import machine_view
from stepscope.tui.draw_overview import overview
from stepscope.tui.draw_ranks import ranks_view
from stepscope.tui.frame import Frame, filled
from stepscope.tui.text import fitted

if TYPE_CHECKING:
    from stepscope.tui.frame import ViewOptions
    from stepscope.views.terminal import TerminalScene

SMALLEST = (40, 10)
DRAWN = {
    "overview": overview,
    "metrics": metrics_view,
    "machine": machine_view,
    "ranks": ranks_view,
    "alerts": alerts_view,
}


def draw(scene: TerminalScene, options: ViewOptions, width: int, height: int) -> Frame:
    """Return the screen: exactly `height` lines of `width` columns."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        text = f"{SMALLEST[0]}x{SMALLEST[1]} needed"
        return Frame(filled([title(scene, options, width), [(text, "warn")]], width, height))
    line, hits = tabs(scene, options, width)
    last, more = keys(scene, height - 1, width)
    foot = [fitted([(f" {plain(options.hint)}", "info")], width), last] if options.hint else [last]
    tall = height - 2 - len(foot)
    body = filled(DRAWN[options.view](scene, width, tall, options), width, tall)
    lines = [fitted(title(scene, options, width), width), fitted(line, width), *body, *foot]
    return Frame(lines, [*hits, *more])
