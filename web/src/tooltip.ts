/** The tooltip at the pointer that lists the lines under it; one for the whole page. */

import { fill, h, show } from "./dom.ts";

export interface TipRow {
  colour: string;
  label: string;
  text: string;
  note?: string | undefined;
}

const box = h("div", { class: "tip", attrs: { role: "status", "aria-hidden": "true" } });
box.hidden = true;
const MOST = 14;

/** Show the tooltip next to a point of the page. */
export function showTip(left: number, top: number, title: string, rows: TipRow[], notes: string[]): void {
  if (!box.isConnected) document.body.append(box);
  const more = rows.length - MOST;
  fill(
    box,
    h("div", { class: "tip-title" }, title),
    rows
      .slice(0, MOST)
      .map((row) =>
        h(
          "div",
          { class: "tip-row" },
          h("i", { class: "swatch", style: { background: row.colour } }),
          h("span", { class: "tip-label" }, row.label),
          h("span", { class: "num" }, row.text),
          row.note ? h("span", { class: "soft tip-note" }, row.note) : null,
        ),
      ),
    more > 0 ? h("div", { class: "soft" }, `and ${more} more`) : null,
    notes.map((note) => h("div", { class: "tip-mark" }, note)),
  );
  show(box, true);
  const { width, height } = box.getBoundingClientRect();
  const x = left + 16 + width > innerWidth ? Math.max(4, left - width - 16) : left + 16;
  const y = Math.min(Math.max(4, top - height / 2), innerHeight - height - 4);
  box.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
}

/** Hide the tooltip. */
export function hideTip(): void {
  show(box, false);
}
