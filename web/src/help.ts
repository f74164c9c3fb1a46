/** The keys, behind `?`. */

import { h } from "./dom.ts";

const KEYS: [string[], string][] = [
  [["/"], "search"],
  [["1", "…", "6"], "go to a tab"],
  [["[", "]"], "tab before, tab after"],
  [["u"], "up to all runs"],
  [["↑", "↓", "Enter"], "choose a run in the list, open it"],
  [["p", "c"], "pin the chosen run, tick it to compare"],
  [["Tab"], "from chart to chart; in a chart:"],
  [["←", "→"], "the point before, the point after"],
  [["Shift", "← →"], "move the range in view"],
  [["+", "−", "0"], "zoom in, zoom out, show everything"],
  [["t"], "light or dark"],
  [["Esc"], "leave a field or a chart"],
];

/** Return the dialog that lists the keys. */
export function helpDialog(): HTMLDialogElement {
  const dialog = h("dialog", { attrs: { "aria-label": "Keys" } });
  const close = (): void => dialog.close();
  dialog.append(
    h("h2", {}, "Keys"),
    h(
      "dl",
      { class: "keys" },
      KEYS.flatMap(([keys, text]) => [
        h(
          "dt",
          {},
          keys.flatMap((key) => [h("kbd", {}, key), " "]),
        ),
        h("dd", {}, text),
      ]),
    ),
    h(
      "p",
      { class: "soft help-more" },
      "Drag in a chart to zoom all, double-click to show everything. The address holds what you see: share it.",
    ),
    h("button", { class: "button", attrs: { type: "button", autofocus: true }, on: { click: close } }, "Close"),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) close();
  });
  return dialog;
}
