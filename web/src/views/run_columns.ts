/** The columns of the table of runs. */

import type { RunRow } from "../api.ts";
import { type Child, h } from "../dom.ts";
import { ABSENT, ago, count, duration, moment, number, share, short } from "../format.ts";
import { icon, severityMark, sparkline, stateMark } from "../widgets.ts";

export interface Context {
  pinned: boolean;
  ticked: boolean;
  pin(): void;
  tick(): void;
  href: string;
}

export interface Column {
  key: string;
  title: string;
  help: string;
  class: string;
  /** Sorted from the largest value by default. */
  down?: boolean;
  sort(row: RunRow): number | string | null;
  cell(row: RunRow, context: Context): Child;
}

export const FAILED = new Set(["failed", "killed", "oom-killed", "preempted", "lost", "broken"]);
const STAR = "M8 2.2l1.8 3.7 4 .6-2.9 2.9.7 4L8 11.5l-3.6 1.9.7-4L2.2 6.5l4-.6z";

/** A number of the card; a placeholder while it is loading, so that nothing moves later. */
function late(row: RunRow, show: (card: NonNullable<RunRow["card"]>) => Child): Child {
  return row.card ? show(row.card) : row.state === "broken" ? ABSENT : h("div", { class: "bone short" });
}

function two(main: Child, more: Child): Child {
  return h("span", { class: "two" }, h("span", {}, main), more ? h("small", {}, more) : null);
}

/** Return project, id (if the name differs) and the cause of a failure. */
function whence(row: RunRow): Child {
  const id = row.id === row.name ? "" : row.id;
  const rest = [row.cause || id, row.attempts > 1 ? `${row.attempts} attempts` : ""].filter(Boolean).join(" · ");
  return [h("span", { class: row.cause ? "" : "run-project" }, row.project, row.project && rest ? " · " : ""), rest];
}

function progress(row: RunRow): number | null {
  const total = row.card?.total_steps;
  return total && row.step !== null ? Math.min(1, (row.step + 1) / total) : null;
}

function money(cost: { amount: number; currency: string } | null | undefined): string {
  return cost ? `${cost.amount < 0.01 ? "<0.01" : cost.amount.toFixed(2)} ${cost.currency}` : ABSENT;
}

export const COLUMNS: readonly Column[] = [
  {
    key: "",
    title: "",
    help: "Pin and compare",
    class: "tight",
    sort: () => null,
    cell: (row, context) => [
      h(
        "button",
        {
          class: "pin",
          title: context.pinned ? "Unpin" : "Pin to the top",
          attrs: { type: "button", "aria-pressed": String(context.pinned), "aria-label": `Pin ${row.name}` },
          on: { click: context.pin },
        },
        icon(STAR),
      ),
      h("input", {
        attrs: { type: "checkbox", checked: context.ticked, "aria-label": `Compare ${row.name}` },
        on: { change: context.tick },
      }),
    ],
  },
  {
    key: "name",
    title: "Run",
    help: "Name and project",
    class: "",
    sort: (row) => row.name.toLowerCase(),
    cell: (row, context) =>
      h(
        "div",
        { class: "run-name" },
        h("a", { class: "cut", title: row.name, attrs: { href: context.href } }, row.name),
        h(
          "span",
          { class: "cut soft", title: [row.project, row.id, row.cause].filter(Boolean).join("\n") },
          whence(row),
        ),
      ),
  },
  {
    key: "state",
    title: "State",
    help: "State of the run",
    class: "",
    sort: (row) => row.state,
    cell: (row) => h("span", { title: row.cause }, stateMark(row.state, row.cause)),
  },
  {
    key: "step",
    title: "Step",
    help: "Last step and progress",
    class: "num far",
    down: true,
    sort: (row) => row.step,
    cell: (row) => {
      const share = progress(row);
      return two(
        count(row.step),
        share === null
          ? null
          : row.state === "running" && row.card?.left
            ? `${duration(row.card.left)} left`
            : `${Math.floor(share * 100)} %`,
      );
    },
  },
  {
    key: "rate",
    title: "Rate",
    help: "Steps per second",
    class: "num mid",
    down: true,
    sort: (row) => row.card?.rate ?? null,
    cell: (row) => late(row, (card) => (card.rate === null ? ABSENT : `${short(card.rate, "steps/second")}/s`)),
  },
  {
    key: "loss",
    title: "Loss",
    help: "Last loss and best loss",
    class: "num",
    sort: (row) => row.card?.loss?.last ?? null,
    cell: (row) =>
      late(row, (card) =>
        card.loss
          ? two(
              card.loss.last === null
                ? h("span", { class: "bad", title: "NaN or infinite" }, "NaN")
                : number(card.loss.last),
              `best ${number(card.loss.best)}`,
            )
          : ABSENT,
      ),
  },
  {
    key: "spark",
    title: "Trend",
    help: "Loss over time",
    class: "",
    sort: (row) => row.card?.loss?.best ?? null,
    cell: (row) => (row.card ? sparkline(row.card.spark) : null),
  },
  {
    key: "gpu",
    title: "GPU",
    help: "Mean GPU utilization",
    class: "num mid",
    down: true,
    sort: (row) => row.card?.gpu ?? null,
    cell: (row) =>
      late(row, (card) =>
        card.gpu === null
          ? ABSENT
          : [
              h("span", { class: "meter" }, h("i", { style: { width: `${Math.round(card.gpu * 100)}%` } })),
              share(card.gpu),
            ],
      ),
  },
  {
    key: "duration",
    title: "Duration",
    help: "From the start to the end or now",
    class: "num far",
    down: true,
    sort: (row) => row.duration,
    cell: (row) => duration(row.duration),
  },
  {
    key: "cost",
    title: "Cost",
    help: "Estimated from the price table; see stepscope ledger",
    class: "num mid",
    down: true,
    sort: (row) => row.card?.cost?.amount ?? null,
    cell: (row) => late(row, (card) => money(card.cost)),
  },
  {
    key: "alert",
    title: "Last alert",
    help: "The last rule that fired",
    class: "far",
    sort: (row) => row.card?.alert?.rule ?? null,
    cell: (row) =>
      late(row, (card) =>
        card.alert
          ? h(
              "div",
              { class: "two", title: card.alert.text },
              severityMark(card.alert.severity),
              h("small", { class: "cut" }, card.alert.rule),
            )
          : h("span", { class: "faint" }, "none"),
      ),
  },
  {
    key: "created",
    title: "Started",
    help: "Start of the run",
    class: "num far",
    down: true,
    sort: (row) => row.created,
    cell: (row) =>
      h(
        "span",
        { title: row.created ? moment(row.created) : "" },
        !row.created ? ABSENT : ago(Date.now() / 1000 - row.created),
      ),
  },
];

/** Columns that are hidden if they are empty for all runs. */
const OPTIONAL = ["rate", "loss", "spark", "gpu", "cost", "alert"];

/** Return the columns that are empty for all runs; none while a run is loading. */
export function emptyColumns(rows: readonly RunRow[]): string[] {
  if (!rows.length || rows.some((row) => !row.card && row.state !== "broken")) return [];
  return OPTIONAL.filter((key) => rows.every((row) => columnOf(key)?.sort(row) === null));
}

/** Return a column by its key; null if it is missing. */
export function columnOf(key: string): Column | null {
  return key ? (COLUMNS.find((column) => column.key === key) ?? null) : null;
}
