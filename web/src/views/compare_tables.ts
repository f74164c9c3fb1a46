/** The tables of a comparison: numbers with their differences, phases of a step, configuration. */

import type { ComparedRun, Quantity, RunComparison } from "../api.ts";
import { fill, h } from "../dom.ts";
import { ABSENT, change, duration, value } from "../format.ts";
import { phaseBar, phaseColour, stateMark } from "../widgets.ts";
import { quantity, tone } from "./difference.ts";
import { swatch } from "./swatch.ts";

/** Add the end of the id to the names of runs with the same name. */
export function makeNamesUnique(runs: ComparedRun[]): void {
  const same = (name: string) => runs.filter((run) => run.name === name).length > 1;
  const shared = new Set(runs.map((run) => run.name).filter(same));
  for (const run of runs) if (shared.has(run.name)) run.name = `${run.name} ${run.id.slice(-11)}`;
}

export interface MarkOrders {
  base(): void;
  remove(): void;
}

/** Return the label of a run: color, name as a link, state, and buttons. */
export function runMark(run: ComparedRun, place: number, href: string, orders: MarkOrders): HTMLElement {
  const name = run.name || run.id;
  const base =
    place === 0
      ? h("span", { class: "chip" }, "base")
      : h(
          "button",
          {
            class: "compare-order",
            title: `Compare the other runs with ${name}`,
            attrs: { type: "button" },
            on: { click: orders.base },
          },
          "make base",
        );
  const remove = h(
    "button",
    {
      class: "compare-order",
      attrs: { type: "button", "aria-label": `Remove ${name}` },
      on: { click: orders.remove },
    },
    "×",
  );
  return h(
    "div",
    { class: "compare-run" },
    swatch(place),
    h("a", { class: "compare-name", title: name, attrs: { href } }, name),
    stateMark(run.state),
    h("span", { class: "soft num" }, duration(run.duration)),
    base,
    remove,
  );
}

function head(comparison: RunComparison, first: string): HTMLElement {
  return h(
    "thead",
    {},
    h(
      "tr",
      {},
      h("th", { attrs: { scope: "col" } }, first),
      comparison.runs.map((run, place) =>
        h(
          "th",
          { class: "compare-col", attrs: { scope: "col" }, title: run.name || run.id },
          swatch(place),
          " ",
          run.name || run.id,
        ),
      ),
    ),
  );
}

const FEW = 8;

/** Return the table of numbers; each cell shows the difference to the first run, and whether it exceeds the noise. */
export function numbersTable(comparison: RunComparison): HTMLElement | null {
  const { numbers } = comparison;
  if (!numbers.length) return null;
  const body = h("tbody", {});
  const line = (row: Quantity): HTMLElement =>
    h(
      "tr",
      {},
      h(
        "th",
        { attrs: { scope: "row" }, title: row.better ? `${row.better} is better` : "" },
        quantity(row.name),
        row.better ? h("span", { class: "soft compare-better" }, row.better === "lower" ? " ↓" : " ↑") : null,
      ),
      comparison.runs.map((run, place) => numberCell(row, place, run)),
    );
  const draw = (all: boolean): void => {
    fill(body, numbers.slice(0, all ? numbers.length : FEW).map(line));
    button.hidden = all || numbers.length <= FEW;
  };
  const button = h(
    "button",
    { class: "button compare-more", attrs: { type: "button" }, on: { click: () => draw(true) } },
    `Show all ${numbers.length} numbers`,
  );
  draw(false);
  return h(
    "section",
    { class: "card" },
    h("h2", { class: "card-title" }, "Summary"),
    h("div", { class: "scroll" }, h("table", { class: "compare-numbers" }, head(comparison, "number"), body)),
    button,
  );
}

/** Return the run of a cell, shown if the table is too narrow for columns. */
function whose(run: ComparedRun, place: number): HTMLElement {
  return h("div", { class: "compare-whose soft cut" }, swatch(place), " ", run.name || run.id);
}

function numberCell(row: Quantity, place: number, run: ComparedRun): HTMLElement {
  const found = row.values[place];
  if (!found || found.value === null) return h("td", { class: "num soft" }, whose(run, place), ABSENT);
  const difference = row.differences[place] ?? null;
  return h(
    "td",
    { class: "num", title: difference?.text ?? "" },
    whose(run, place),
    h(
      "div",
      {},
      value(found.value, row.unit),
      difference ? h("span", { class: `compare-verdict ${tone(difference.verdict)}` }, difference.verdict) : null,
    ),
    difference
      ? h(
          "div",
          { class: `compare-difference ${tone(difference.verdict)}` },
          change(difference.ratio),
          range(difference),
        )
      : null,
  );
}

function range(difference: { low: number | null; high: number | null }): HTMLElement | null {
  if (difference.low === null || difference.high === null) return null;
  return h(
    "span",
    { class: "soft" },
    ` (${change(difference.low).replace("\u202f%", "")} … ${change(difference.high)})`,
  );
}

/** Return the mean step of each run as a bar of its phases, all on one scale. */
export function phasesTable(comparison: RunComparison): HTMLElement | null {
  const totals = comparison.phases.map((phases) => phases.reduce((sum, phase) => sum + (phase.mean ?? 0), 0));
  const most = Math.max(...totals, 0);
  if (most <= 0) return null;
  const names = new Set(comparison.phases.flatMap((phases) => phases.map((phase) => phase.phase)));
  const keys = [...names].map((name) =>
    h("li", {}, h("i", { class: "swatch", style: { background: `var(--${phaseColour(name)})` } }), " ", name),
  );
  return h(
    "section",
    { class: "card" },
    h("h2", { class: "card-title" }, "Mean step by phase"),
    h("ul", { class: "compare-keys soft" }, keys),
    h(
      "div",
      { class: "compare-phases" },
      comparison.runs.map((run, place) => {
        const phases = comparison.phases[place] ?? [];
        const total = totals[place] ?? 0;
        return h(
          "div",
          { class: "compare-phase" },
          h("div", { class: "compare-phase-name", title: run.name || run.id }, swatch(place), " ", run.name || run.id),
          h(
            "div",
            { class: "compare-phase-bar" },
            total > 0
              ? h("div", { style: { width: `${(total / most) * 100}%` } }, phaseBar(phases, false))
              : h("span", { class: "soft" }, "no phases recorded"),
          ),
          h("div", { class: "num" }, total > 0 ? value(total, "seconds") : ABSENT),
        );
      }),
    ),
  );
}

/** Return the settings that differ, and on demand the others. */
export function configTable(comparison: RunComparison): HTMLElement | null {
  if (!comparison.config.length) return null;
  const different = comparison.config.filter((row) => !row.same);
  const body = h("tbody", {});
  const row = (one: RunComparison["config"][number]): HTMLElement =>
    h(
      "tr",
      { class: one.same ? "soft" : "" },
      h("th", { class: "compare-key", attrs: { scope: "row" } }, one.key),
      comparison.runs.map((run, place) =>
        h(
          "td",
          { class: place > 0 && !one.same && text(one.values[place]) !== text(one.values[0]) ? "compare-other" : "" },
          whose(run, place),
          text(one.values[place]),
        ),
      ),
    );
  const draw = (all: boolean): void => fill(body, (all ? comparison.config : different).map(row));
  draw(different.length === 0);
  const same = comparison.config.length - different.length;
  const box = h("input", { attrs: { type: "checkbox" }, on: { change: () => draw(box.checked) } });
  return h(
    "section",
    { class: "card" },
    h("h2", { class: "card-title" }, "Configuration"),
    h(
      "p",
      { class: "soft" },
      different.length ? `${different.length} of ${comparison.config.length} keys differ.` : "All keys are the same.",
      different.length && same
        ? h("label", { class: "compare-all" }, box, ` show ${same} equal ${same === 1 ? "key" : "keys"}`)
        : null,
    ),
    h("div", { class: "scroll" }, h("table", { class: "compare-config" }, head(comparison, "key"), body)),
  );
}

function text(found: unknown): string {
  if (found === null || found === undefined) return ABSENT;
  return typeof found === "string" ? found : typeof found === "number" ? String(found) : JSON.stringify(found);
}
