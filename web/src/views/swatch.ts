/** The color of a line as a small square, in both themes. */

import { h } from "../dom.ts";
import { lineColour, onTheme } from "../theme.ts";

/** Return the square of the n-th line. */
export function swatch(place: number): HTMLElement {
  const element = h("i", {
    class: "swatch",
    attrs: { "aria-hidden": "true" },
    style: { background: lineColour(place) },
  });
  const stop = onTheme(() => {
    if (element.isConnected) element.style.setProperty("background", lineColour(place));
    else stop();
  });
  return element;
}

/** Return the names of lines with their colors, in one row. */
export function legend(labels: string[]): HTMLElement {
  return h(
    "span",
    { class: "legend", title: labels.join(", ") },
    labels.map((label, place) => h("span", {}, swatch(place), label)),
  );
}
