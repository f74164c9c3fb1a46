/** The values of all lines of a chart with their colors, for the title of a chart of several runs. */

import { type Line, valueAt } from "./chart_line.ts";
import { fill, h, setText } from "./dom.ts";
import { short } from "./format.ts";
import { colour, lineColour } from "./theme.ts";

/** A row of values; `named` adds the names of the lines. */
export class Readings {
  readonly element = h("div", { class: "chart-values num" });
  private shown = "";
  private texts: HTMLElement[] = [];

  constructor(private readonly named: boolean) {}

  show(lines: readonly Line[], x: number | null, end: number, unit: string): void {
    const main = lines.filter((line) => !line.faint);
    const paint = main.map((line) => (typeof line.colour === "number" ? lineColour(line.colour) : colour(line.colour)));
    const key = JSON.stringify([main.map((line) => line.label), paint]);
    if (key !== this.shown) {
      this.shown = key;
      this.texts = main.map(() => h("b", {}));
      fill(
        this.element,
        main.map((line, place) =>
          h(
            "span",
            { title: line.label },
            h("i", { class: "swatch", style: { background: paint[place] ?? "" } }),
            this.named ? h("span", { class: "cut" }, line.label) : null,
            this.texts[place],
          ),
        ),
      );
    }
    main.forEach((line, place) => {
      const text = this.texts[place];
      if (text) setText(text, short(valueAt(line, x, end), unit));
    });
  }
}
