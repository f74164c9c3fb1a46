/** Widgets that several views share. */

import type { PhaseShare } from "./api.ts";
import { type Child, h, s } from "./dom.ts";
import { capital, duration, share, value } from "./format.ts";

const STATE: Record<string, { tone: string; icon: string }> = {
  running: { tone: "go", icon: "M8 2.5a5.5 5.5 0 1 1 0 11a5.5 5.5 0 0 1 0-11z" },
  finished: { tone: "good", icon: "M3 8.5l3.2 3.2L13 5" },
  interrupted: { tone: "warn", icon: "M4.5 4.5h7v7h-7z" },
  failed: { tone: "bad", icon: "M4 4l8 8M12 4l-8 8" },
  killed: { tone: "bad", icon: "M4 4l8 8M12 4l-8 8" },
  "oom-killed": { tone: "bad", icon: "M4 4l8 8M12 4l-8 8" },
  preempted: { tone: "warn", icon: "M6 3.5v9M10 3.5v9" },
  lost: { tone: "warn", icon: "M5.5 6a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8M8 12.5v.2" },
  broken: { tone: "warn", icon: "M8 3v6M8 12v.2" },
  stalled: { tone: "warn", icon: "M8 3v6M8 12v.2" },
  hung: { tone: "bad", icon: "M8 3v6M8 12v.2" },
};

/** Return an icon from a path in a square of 16 units. */
export function icon(path: string, tone = "", filled = false): SVGSVGElement {
  return s(
    "svg",
    { class: `icon ${tone}`, attrs: { viewBox: "0 0 16 16", "aria-hidden": "true" } },
    s("path", { attrs: { d: path, fill: filled ? "currentColor" : "none", stroke: filled ? "none" : "currentColor" } }),
  );
}

/** Return a state as icon and word, never by color alone. A finished run has a cause if something was wrong. */
export function stateMark(state: string, cause = ""): HTMLElement {
  const known = STATE[state === "finished" && cause ? "failed" : state] ?? { tone: "soft", icon: "M3 8h10" };
  return h("span", { class: `mark ${known.tone}` }, icon(known.icon, "", state === "running"), h("span", {}, state));
}

/** Return the style of a state: go, good, warn, bad or soft. */
export function toneOf(state: string, cause = ""): string {
  return state === "finished" && cause ? "bad" : (STATE[state]?.tone ?? "soft");
}

const INFO = { tone: "soft", icon: "M8 7v5M8 4v.2" };
const SEVERITY: Record<string, { tone: string; icon: string }> = {
  warning: { tone: "warn", icon: "M8 2.5L14 13H2zM8 6.5v3M8 11.3v.1" },
  critical: { tone: "bad", icon: "M5.2 2h5.6L14 5.2v5.6L10.8 14H5.2L2 10.8V5.2zM8 5v3.5M8 11v.1" },
};

/** Return a severity as icon and word. */
export function severityMark(severity: string): HTMLElement {
  const known = SEVERITY[severity] ?? INFO;
  return h("span", { class: `mark ${known.tone}` }, icon(known.icon), h("span", {}, severity));
}

const [SPARK_WIDTH, SPARK_HEIGHT] = [96, 22];

/** Return a sparkline with gaps where values are not finite. */
export function sparkline(values: readonly (number | null)[]): SVGSVGElement {
  const finite = values.filter((one): one is number => one !== null && Number.isFinite(one));
  const picture = s("svg", {
    class: "spark",
    attrs: { viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
  });
  if (!finite.length) return picture;
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const x = (place: number): number =>
    values.length > 1 ? (place / (values.length - 1)) * (SPARK_WIDTH - 2) + 1 : SPARK_WIDTH / 2;
  const y = (value: number): number =>
    high > low ? SPARK_HEIGHT - 2 - ((value - low) / (high - low)) * (SPARK_HEIGHT - 4) : SPARK_HEIGHT / 2;
  let path = "";
  let open = false;
  values.forEach((value, place) => {
    const there = value !== null && Number.isFinite(value);
    if (there) path += `${open ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    open = there;
  });
  picture.append(s("path", { attrs: { d: path } }));
  return picture;
}

const PHASES = [
  "data",
  "copy",
  "forward",
  "backward",
  "optimizer",
  "communication",
  "checkpoint",
  "evaluation",
  "compile",
  "logging",
  "gc",
];

/** Return the name of a phase's color, which is the same everywhere. */
export function phaseColour(phase: string): string {
  return PHASES.includes(phase) ? `phase-${phase}` : phase === "other" ? "phase-other" : "phase-own";
}

/** Return a step as a bar of its phases; `legend` adds their names and shares below. */
export function phaseBar(phases: readonly Omit<PhaseShare, "seconds">[], legend = true): HTMLElement {
  const order = (phase: string): number =>
    phase === "other" ? 99 : PHASES.includes(phase) ? PHASES.indexOf(phase) : 50;
  const shown = phases
    .map((one) => ({ ...one, share: one.share ?? 0 }))
    .filter((one) => one.share > 0.0005)
    .sort((one, other) => order(one.phase) - order(other.phase));
  const paint = (phase: string): Record<string, string> => ({ background: `var(--${phaseColour(phase)})` });
  const label = shown.map((one) => `${one.phase} ${share(one.share)}`).join(", ");
  const bar = h(
    "div",
    { class: "phases", attrs: { role: "img", "aria-label": `A step: ${label}` } },
    shown.map((one) =>
      h(
        "div",
        {
          class: "phase",
          title: `${one.phase}: ${duration(one.mean)} per step, ${value(one.share, "ratio")}`,
          style: { "flex-grow": String(one.share), ...paint(one.phase) },
        },
        one.share > 0.09 && one.phase !== "other" ? h("span", {}, one.phase) : null,
      ),
    ),
  );
  if (!legend) return bar;
  const keys = shown.map((one) =>
    h(
      "li",
      {},
      h("i", { class: "swatch", style: paint(one.phase) }),
      h("span", { class: "phase-name" }, one.phase),
      h("span", { class: "num" }, duration(one.mean)),
      h("span", { class: "num soft" }, share(one.share)),
    ),
  );
  return h("div", { class: "phases-box" }, bar, h("ul", { class: "phase-keys" }, keys));
}

/** Return a sentence with the parts between backquotes as code. */
export function coded(text: string): Child {
  return text
    .split("`")
    .map((part, place, all) =>
      place % 2 && place < all.length - 1 ? h("code", {}, part) : place % 2 ? `\`${part}` : part,
    );
}

/** Return a message that there is no data, why, and what to do. */
export function empty(title: string, text: string, ...children: Child[]): HTMLElement {
  return h("div", { class: "nothing" }, h("h2", {}, title), h("p", { class: "soft" }, text), ...children);
}

/** Return an error message with a button to try again. */
export function failure(text: string, retry?: () => void, title = "Request failed", ...children: Child[]): HTMLElement {
  return h(
    "div",
    { class: "nothing", attrs: { role: "alert" } },
    h("h2", {}, icon("M8 2.5L14 13H2zM8 6.5v3M8 11.3v.1", "bad"), ` ${title}`),
    h("p", {}, coded(capital(text))),
    ...children,
    retry ? h("button", { class: "button", attrs: { type: "button" }, on: { click: retry } }, "Try again") : null,
  );
}

/** Return placeholders for lines that are loading. */
export function skeleton(lines: number): HTMLElement {
  return h(
    "div",
    { class: "skeleton", attrs: { "aria-busy": "true", "aria-label": "loading" } },
    Array.from({ length: lines }, () => h("div", { class: "bone" })),
  );
}

/** A titled box. */
export function card(title: string, ...children: Child[]): HTMLElement {
  return h("section", { class: "card" }, title ? h("h2", { class: "card-title" }, title) : null, ...children);
}

/** A labelled control. */
export function field(label: string, control: HTMLElement): HTMLElement {
  return h("label", { class: "field" }, h("span", { class: "soft" }, label), control);
}

export interface Control {
  element: HTMLElement;
  /** Select a value without calling back; a switch takes "1" or "". */
  set(value: string): void;
}

/** A choice of one option; options are pairs of value and text. */
export function segmented(
  label: string,
  options: readonly (readonly [string, string])[],
  value: string,
  chosen: (value: string) => void,
): Control {
  const buttons = options.map(([word, text]) =>
    h("button", { attrs: { type: "button", "data-value": word }, on: { click: () => chosen(word) } }, text),
  );
  const set = (now: string): void => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === now));
  };
  set(value);
  return { element: h("div", { class: "segmented", attrs: { role: "group", "aria-label": label } }, buttons), set };
}

/** A switch. */
export function toggle(label: string, on: boolean, changed: (on: boolean) => void, title = ""): Control {
  const button = h(
    "button",
    {
      class: "toggle",
      title,
      attrs: { type: "button", "aria-pressed": String(on) },
      on: { click: () => changed(button.getAttribute("aria-pressed") !== "true") },
    },
    label,
  );
  return { element: button, set: (now) => button.setAttribute("aria-pressed", String(now === "1" || now === "true")) };
}

export interface Column<T> {
  title: string;
  class?: string;
  cell(row: T): Child;
}

/** A plain table. */
export function table<T>(columns: readonly Column<T>[], rows: readonly T[]): HTMLTableElement {
  return h(
    "table",
    { class: "table" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map((column) => h("th", { class: column.class, attrs: { scope: "col" } }, column.title)),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          {},
          columns.map((column) => h("td", { class: column.class }, column.cell(row))),
        ),
      ),
    ),
  );
}
