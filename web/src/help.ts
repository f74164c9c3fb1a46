/** The list of keys, shown by `?`. */

import { h } from "./dom.ts";

const KEYS: [string[], string][] = [
  [["/"], "search"],
  [["1", "…", "6"], "go to a tab"],
  [["[", "]"], "previous tab, next tab"],
  [["u"], "up to all runs"],
  [["↑", "↓", "Enter"], "select a run in the list, open it"],
  [["p", "c"], "pin the selected run, select it to compare"],
  [["Tab"], "next chart; in a chart:"],
  [["←", "→"], "previous point, next point"],
  [["Shift", "← →"], "move the visible range"],
  [["+", "−", "0"], "zoom in, zoom out, show everything"],
  [["t"], "light or dark"],
  [["Esc"], "leave a field or chart"],
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
      "Drag in a chart to zoom all charts, double-click to reset. The address holds the current view: share it.",
    ),
    h("button", { class: "button", attrs: { type: "button", autofocus: true }, on: { click: close } }, "Close"),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) close();
  });
  return dialog;
}
