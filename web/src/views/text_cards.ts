/** Logged texts: one card per name, the newest on top. */

import type { RunEvent } from "../api.ts";
import { h } from "../dom.ts";
import { count, moment } from "../format.ts";

export interface Text {
  step: number | null;
  time: number | null;
  text: string;
}

/** Return the texts of events by name, the newest first. */
export function textsOf(events: readonly RunEvent[]): Map<string, Text[]> {
  const found = new Map<string, Text[]>();
  for (const { step, time, data } of [...events].reverse()) {
    const { values } = data;
    if (typeof values !== "object" || values === null || Array.isArray(values)) continue;
    for (const [name, value] of Object.entries(values)) {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      found.set(name, [...(found.get(name) ?? []), { step, time, text }]);
    }
  }
  return new Map([...found].sort(([one], [other]) => (one < other ? -1 : 1)));
}

/** Return the card of one name. */
export function textCard(name: string, texts: readonly Text[]): HTMLElement {
  return h(
    "section",
    { class: "chart text-card", attrs: { "data-text": name, "data-state": "drawn" } },
    h(
      "header",
      { class: "chart-head" },
      h("h3", { class: "chart-title", title: name }, name),
      h("span", { class: "soft end" }, texts.length > 1 ? `${count(texts.length)} texts` : "text"),
    ),
    h(
      "ol",
      { class: "text-list", attrs: { tabindex: 0 } },
      texts.map((one) =>
        h(
          "li",
          {},
          h(
            "span",
            { class: "soft num", title: moment(one.time) },
            one.step === null ? moment(one.time) : `step ${count(one.step)}`,
          ),
          h("span", {}, one.text),
        ),
      ),
    ),
  );
}
