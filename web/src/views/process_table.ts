/** The processes of the run: resources of each rank. */

import type { RunMachine } from "../api.ts";
import { fill, h, setText } from "../dom.ts";
import { ABSENT, value } from "../format.ts";
import { stateMark } from "../widgets.ts";

const COLUMNS: [string, string, string][] = [
  ["cpu_ratio", "CPU", "ratio"],
  ["memory_bytes", "memory", "bytes"],
  ["threads", "threads", ""],
  ["open_files", "open files", ""],
  ["workers", "workers", ""],
  ["read_bytes_per_second", "reads", "bytes/second"],
  ["write_bytes_per_second", "writes", "bytes/second"],
];

export class ProcessTable {
  readonly element = h("section", { class: "card system-processes" });
  private cells = new Map<string, HTMLElement>();
  private shown = "";

  draw(processes: RunMachine["processes"]): void {
    const columns = COLUMNS.filter(([key]) =>
      processes.some((process) => process.metrics[key] !== null && process.metrics[key] !== undefined),
    );
    const key = JSON.stringify([processes.map(({ rank, pid, state }) => [rank, pid, state]), columns]);
    if (key !== this.shown) {
      this.shown = key;
      this.build(processes, columns);
    }
    for (const { rank, metrics } of processes) {
      for (const [name, amount] of Object.entries(metrics)) this.set(`process/${rank}/${name}`, amount);
    }
    this.element.hidden = !processes.length;
  }

  follow(fresh: ReadonlyMap<string, number>): void {
    for (const [name, amount] of fresh) this.set(name, amount);
  }

  private set(name: string, amount: number | null): void {
    const cell = this.cells.get(name);
    if (cell) setText(cell, amount === null ? ABSENT : value(amount, cell.dataset.unit ?? ""));
  }

  private build(processes: RunMachine["processes"], columns: [string, string, string][]): void {
    this.cells.clear();
    const row = ({ rank, pid, state }: RunMachine["processes"][number]): HTMLElement =>
      h(
        "tr",
        {},
        h("td", { class: "num" }, `${rank}`),
        h("td", { class: "num soft" }, pid === null ? ABSENT : `${pid}`),
        h("td", {}, stateMark(state)),
        columns.map(([key, , unit]) => {
          const cell = h("td", { class: "num", attrs: { "data-unit": unit } }, ABSENT);
          this.cells.set(`process/${rank}/${key}`, cell);
          return cell;
        }),
      );
    fill(
      this.element,
      h("h2", { class: "card-title" }, "Processes"),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "table" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["rank", "pid", "state", ...columns.map(([, label]) => label)].map((label) =>
                h("th", { class: label === "state" ? "" : "num", attrs: { scope: "col" } }, label),
              ),
            ),
          ),
          h("tbody", {}, processes.map(row)),
        ),
      ),
    );
  }
}
