/** A row for each rank, sorted by any column; the first fifty, more on demand. */

import type { ShownRank } from "../api.ts";
import { type Child, fill, h } from "../dom.ts";
import { ABSENT, count, duration, value } from "../format.ts";
import { stateMark } from "../widgets.ts";
import { coordinates } from "./rank_order.ts";
import { behind, signed } from "./rank_panel.ts";

const PAGE = 50;
/** A phase is named from this share of a step on. */
const NOTABLE = 0.01;

interface RankColumn {
  key: string;
  title: string;
  num: boolean;
  help?: string;
  sort(row: ShownRank): number | string;
  cell(row: ShownRank, usual: number): Child;
}

const last = (amount: number | null): number => amount ?? -Infinity;
const time = (seconds: number | null): string => (seconds === null ? ABSENT : duration(seconds));

const COLUMNS: RankColumn[] = [
  {
    key: "rank",
    title: "rank",
    num: true,
    sort: (row) => row.rank,
    cell: (row) => h("button", { class: "rank-pick", attrs: { type: "button" } }, row.rank),
  },
  { key: "host", title: "host", num: false, sort: (row) => row.host, cell: host },
  { key: "place", title: "place", num: false, sort: coordinates, cell: coordinates },
  {
    key: "state",
    title: "state",
    num: false,
    sort: (row) => `${row.is_well ? 1 : 0}${row.stall || row.state}`,
    cell: (row) => [
      stateMark(row.stall || row.state, row.cause),
      row.blame ? h("span", { class: "bad rank-blame" }, `· ${row.blame}`) : null,
    ],
  },
  { key: "step", title: "step", num: true, sort: (row) => last(row.step), cell: (row) => behind(row) },
  {
    key: "late",
    title: "late",
    num: true,
    help: "own time beyond that of the median rank",
    sort: (row) => last(row.late_seconds),
    cell: (row, usual) => lateness(row, usual),
  },
  {
    key: "slowest",
    title: "mostly in",
    num: false,
    help: "the phase in which it is the most beyond the median rank",
    sort: (row) => row.slowest_phase,
    cell: (row, usual) => ((row.slowest_seconds ?? 0) > NOTABLE * usual ? row.slowest_phase : ""),
  },
  {
    key: "own",
    title: "own time",
    num: true,
    help: "step time without the phases in which it may wait for other ranks",
    sort: (row) => last(row.own_seconds),
    cell: (row) => time(row.own_seconds),
  },
  {
    key: "time",
    title: "step time",
    num: true,
    sort: (row) => last(row.step_seconds),
    cell: (row) => time(row.step_seconds),
  },
  {
    key: "phase",
    title: "last seen in",
    num: false,
    help: "the phase in which an event last found it",
    sort: (row) => row.last_phase,
    cell: (row) => row.last_phase,
  },
  {
    key: "gpu",
    title: "GPU",
    num: false,
    sort: (row) => last(row.gpu),
    cell: (row) => (row.gpu === null ? "" : h("span", { title: row.gpu_name }, row.gpu)),
  },
  {
    key: "heat",
    title: "temperature",
    num: true,
    sort: (row) => last(row.temperature) + (row.throttled.length ? 1000 : 0),
    cell: (row) =>
      row.temperature === null && !row.throttled.length
        ? ""
        : h(
            "span",
            { class: row.throttled.length ? "bad" : "", title: row.throttled.join(", ") },
            `${row.temperature === null ? "" : value(Math.round(row.temperature), "celsius")}${row.throttled.length ? " throttled" : ""}`,
          ),
  },
];

function host(row: ShownRank): Child {
  return row.host_note ? h("span", { class: "noted", title: row.host_note }, row.host) : row.host;
}

function lateness(row: ShownRank, usual: number): Child {
  if (row.late_seconds === null) return ABSENT;
  if (Math.abs(row.late_seconds) < 0.005 * usual) return "0";
  return h("span", { class: row.is_late ? "bad" : "" }, signed(row.late_seconds));
}

export class RankList {
  readonly element = h("section", { class: "card rank-list" });
  private rows: readonly ShownRank[] = [];
  private usual = 0;
  private chosen = -1;
  private key = "";
  private down = true;
  private shown = PAGE;

  constructor(private readonly choose: (rank: number) => void) {}

  set(rows: readonly ShownRank[], usual: number): void {
    [this.rows, this.usual] = [rows, usual];
    this.draw();
  }

  /** Mark the row of a rank. */
  mark(rank: number): void {
    this.chosen = rank;
    for (const row of this.element.querySelectorAll<HTMLElement>("tbody tr"))
      row.setAttribute("aria-selected", String(Number(row.dataset.rank) === rank));
  }

  private sorted(): readonly ShownRank[] {
    const column = COLUMNS.find((one) => one.key === this.key);
    if (!column) return this.rows; // the worst first
    const sign = this.down ? -1 : 1;
    return [...this.rows].sort((one, other) => {
      const [left, right] = [column.sort(one), column.sort(other)];
      return sign * (left < right ? -1 : left > right ? 1 : 0) || one.rank - other.rank;
    });
  }

  private sortBy(column: RankColumn): void {
    this.down = this.key === column.key ? !this.down : column.num && column.key !== "rank";
    this.key = column.key;
    this.draw();
  }

  private draw(): void {
    const columns = COLUMNS.filter((column) =>
      this.rows.some((row) => ![null, "", ABSENT].includes(column.cell(row, this.usual) as string | null)),
    );
    const rows = this.sorted();
    const more = rows.length - this.shown;
    const head = columns.map((column) => {
      const order = this.key === column.key ? (this.down ? "descending" : "ascending") : "none";
      const button = h(
        "button",
        { class: "rank-sort", attrs: { type: "button" }, title: column.help, on: { click: () => this.sortBy(column) } },
        column.title,
      );
      return h("th", { class: column.num ? "num" : "", attrs: { scope: "col", "aria-sort": order } }, button);
    });
    fill(
      this.element,
      h("h2", { class: "card-title" }, `Ranks (${count(rows.length)})`),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "table" },
          h("thead", {}, h("tr", {}, head)),
          h(
            "tbody",
            {},
            rows.slice(0, this.shown).map((row) => this.row(row, columns)),
          ),
        ),
      ),
      more > 0
        ? h(
            "button",
            { class: "button", attrs: { type: "button" }, on: { click: () => this.showMore() } },
            `Show ${Math.min(more, PAGE)} more of ${count(more)}`,
          )
        : null,
    );
  }

  private row(row: ShownRank, columns: RankColumn[]): HTMLElement {
    return h(
      "tr",
      {
        attrs: { "data-rank": row.rank, "aria-selected": String(row.rank === this.chosen) },
        on: { click: () => this.choose(row.rank) },
      },
      columns.map((column) => h("td", { class: column.num ? "num" : "" }, column.cell(row, this.usual))),
    );
  }

  private showMore(): void {
    this.shown += PAGE;
    this.draw();
  }
}
