/** The sinks of a run: other tools that get a copy of it, how far each is, and why one takes nothing. */

import type { SinkRow } from "../api.ts";
import { type Child, h, setText, show } from "../dom.ts";
import { capital, count, moment } from "../format.ts";
import { redraw } from "../redraw.ts";
import { icon, table } from "../widgets.ts";
import { behind, webLink } from "./sink_words.ts";

const ICONS: Record<string, string> = {
  good: "M3 8.5l3.2 3.2L13 5",
  go: "M8 13V3.5M4 7l4-3.8L12 7",
  warn: "M8 3v6M8 12v.2",
  bad: "M4 4l8 8M12 4l-8 8",
};

/** Shows nothing without sinks. Numbers change in place, so that links keep the focus. */
export class SinkTable {
  private readonly body = h("div");
  readonly element = h("section", { class: "card sinks" }, h("h2", { class: "card-title" }, "Sinks"), this.body);
  private numbers: HTMLElement[][] = [];

  constructor() {
    show(this.element, false);
  }

  draw(sinks: readonly SinkRow[]): void {
    const fixed = sinks.map(({ key, name, address, link, state, tone, why, since, nodes }) => {
      return [key, name, address, link, state, tone, why, since, nodes];
    });
    redraw(this.body, fixed, () => this.build(sinks));
    sinks.forEach((sink, place) => {
      const [late, sent, refused] = this.numbers[place] ?? [];
      if (!late || !sent || !refused) return;
      setText(late, behind(sink));
      setText(sent, count(sink.sent_rows));
      setText(refused, count(sink.refused_rows));
      refused.className = sink.refused_rows ? "bad" : "";
    });
    show(this.element, sinks.length > 0);
  }

  private build(sinks: readonly SinkRow[]): Child {
    this.numbers = sinks.map(() => [h("span"), h("span"), h("span")]);
    const numeric = (title: string, which: number) => ({
      title,
      class: "num",
      cell: (sink: SinkRow) => this.numbers[sinks.indexOf(sink)]?.[which],
    });
    const reasons = sinks.filter((sink) => sink.why);
    return [
      h(
        "div",
        { class: "scroll" },
        table(
          [
            { title: "Name", cell: name },
            { title: "State", cell: state },
            numeric("Behind", 0),
            numeric("Rows sent", 1),
            numeric("Refused", 2),
          ],
          sinks,
        ),
      ),
      reasons.length ? h("ul", { class: "sink-reasons" }, reasons.map(reason)) : null,
    ];
  }
}

function name(sink: SinkRow): Child {
  const href = webLink(sink.link);
  const title = [sink.address, sink.nodes > 1 ? `${sink.nodes} nodes` : ""].filter(Boolean).join(", ");
  if (!href) return h("span", { title }, sink.name);
  return h("a", { title, attrs: { href, target: "_blank", rel: "noopener noreferrer" } }, sink.name);
}

function state(sink: SinkRow): Child {
  const path = ICONS[sink.tone];
  return h("span", { class: `mark ${path ? sink.tone : "soft"}` }, icon(path ?? "M3 8h10"), h("span", {}, sink.state));
}

function reason(sink: SinkRow): HTMLElement {
  return h(
    "li",
    {},
    h("b", {}, sink.name),
    h("span", {}, capital(sink.why)),
    sink.since ? h("span", { class: "soft num" }, `since ${moment(sink.since)}`) : null,
  );
}
