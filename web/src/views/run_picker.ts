/** Choose runs from a searchable list. The first chosen run is the base. */

import { type RunRow, reason, runsSince } from "../api.ts";
import { fill, h, setText } from "../dom.ts";
import { ABSENT, number } from "../format.ts";
import { failure, skeleton, stateMark } from "../widgets.ts";

const SHOWN = 60;

/** Return the rows whose name, id, project or state contain all words. */
export function matchingRuns(rows: RunRow[], words: string): RunRow[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    const text = `${row.name} ${row.id} ${row.project} ${row.state}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

export class Picker {
  readonly element = h("div", { class: "picker" });
  private readonly list = h("ul", { class: "picker-list" });
  private readonly status = h("span", { class: "soft", attrs: { role: "status" } });
  private readonly search = h("input", {
    attrs: { type: "search", placeholder: "Find a run", "aria-label": "Find a run" },
    on: { input: () => this.draw(), focus: () => this.open(true) },
  });
  private rows: RunRow[] | null = null;
  private keys: string[] = [];
  private stopped = false;
  private timer = 0;

  constructor(
    private readonly most: number,
    private readonly changed: (keys: string[]) => void,
  ) {
    const toggle = h(
      "button",
      {
        class: "button picker-toggle",
        attrs: { type: "button" },
        on: { click: () => this.open(Boolean(this.list.hidden)) },
      },
      "Choose runs",
    );
    fill(
      this.element,
      h("div", { class: "toolbar" }, h("div", { class: "search" }, this.search), toggle, this.status),
      this.list,
    );
    fill(this.list, skeleton(3));
    void this.load();
  }

  /** Make this run the base. */
  makeBase(key: string): void {
    this.changed([key, ...this.keys.filter((one) => one !== key)]);
  }

  set(keys: string[]): void {
    this.keys = keys;
    this.open(keys.length < 2);
    this.draw();
  }

  stop(): void {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  private open(on: boolean): void {
    this.list.hidden = !on;
  }

  private async load(): Promise<void> {
    try {
      const answer = await runsSince();
      if (this.stopped) return;
      this.rows = answer?.rows ?? [];
      this.rows.sort((one, other) => (other.created ?? 0) - (one.created ?? 0));
      if (answer && !answer.complete) this.timer = window.setTimeout(() => void this.load(), 1000);
      this.draw();
    } catch (error) {
      if (!this.stopped)
        fill(
          this.list,
          failure(reason(error), () => void this.load()),
        );
    }
  }

  /** Add or remove a run. */
  toggle(key: string): void {
    const keys = this.keys.includes(key) ? this.keys.filter((one) => one !== key) : [...this.keys, key];
    if (keys.length > this.most) {
      setText(this.status, `At most ${this.most} runs can be compared.`);
      return;
    }
    const open = !this.list.hidden;
    this.changed(keys);
    this.open(open);
  }

  private draw(): void {
    if (!this.rows) return;
    const rows = matchingRuns(this.rows, this.search.value).filter(
      (row) => row.state !== "broken" && row.state !== "reading",
    );
    setText(this.status, `${this.keys.length} of ${this.rows.length} runs chosen`);
    fill(
      this.list,
      rows.slice(0, SHOWN).map((row) => this.line(row)),
      rows.length > SHOWN
        ? h("li", { class: "soft picker-more" }, `and ${rows.length - SHOWN} more: search for them`)
        : null,
      rows.length ? null : h("li", { class: "soft picker-more" }, "No matching run."),
    );
  }

  private line(row: RunRow): HTMLElement {
    const box = h("input", {
      attrs: { type: "checkbox", checked: this.keys.includes(row.key) },
      on: { change: () => this.toggle(row.key) },
    });
    const loss = row.card?.loss
      ? `${row.card.loss.name} ${row.card.loss.last === null ? "NaN" : number(row.card.loss.last)}`
      : ABSENT;
    // runs often have the same name: their ids differ
    const id = row.name && row.name !== row.id ? h("small", { class: "soft" }, ` ${row.id}`) : null;
    return h(
      "li",
      {},
      h(
        "label",
        { class: "picker-line" },
        box,
        h("span", { class: "picker-name", title: `${row.name}\n${row.id}` }, row.name || row.id, id),
        h("span", { class: "soft picker-project" }, row.project),
        stateMark(row.state, row.cause),
        h("span", { class: "num soft" }, loss),
      ),
    );
  }
}
