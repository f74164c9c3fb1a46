/** The table of runs: only visible rows are in the document, so a thousand runs are as fast as ten. */

import "./runs.css";
import { type RunRow, reason, runsSince } from "../api.ts";
import { fill, h, setText, show } from "../dom.ts";
import type { Place } from "../router.ts";
import { search } from "../search.ts";
import type { Mounted, Page, View } from "../view.ts";
import { nextFrame } from "../viewport.ts";
import { empty, failure, segmented, skeleton } from "../widgets.ts";
import { COLUMNS, type Column, columnOf, emptyColumns, FAILED } from "./run_columns.ts";

const HEIGHT = 45;
const GROUP_HEIGHT = 35;
/** Rows drawn above and below the window, and how many rows one may scroll before they are drawn again. */
const OVERSCAN = 14;
const SLACK = 9;
const PINS = "stepscope-pins";

type Item = { group: string; many: number } | { row: RunRow };

class RunsView implements Mounted {
  private rows = new Map<string, RunRow>();
  private items: Item[] = [];
  private chosen = "";
  private pins: Set<string>;
  private version: number | undefined;
  private timer = 0;
  private stopped = false;
  private failed = "";
  private complete = false;
  private reading = 0;

  private held = new Map<string, { row: RunRow; key: string; element: HTMLTableRowElement }>();
  private readonly search = search("Search runs", (query) => {
    this.chosen = "";
    this.page.router.param({ q: query });
  });
  private readonly states = segmented(
    "State",
    [
      ["", "All"],
      ["running", "Running"],
      ["finished", "Finished"],
      ["failed", "Failed"],
    ],
    "",
    (state) => this.page.router.param({ state }),
  );
  private readonly projects = h("select", {
    attrs: { "aria-label": "Project" },
    on: { change: () => this.page.router.param({ project: this.projects.value }) },
  });
  private readonly groups = h(
    "select",
    { attrs: { "aria-label": "Group by" }, on: { change: () => this.page.router.param({ group: this.groups.value }) } },
    (
      [
        ["", "No groups"],
        ["project", "By project"],
        ["state", "By state"],
      ] as const
    ).map(([value, text]) => h("option", { attrs: { value } }, text)),
  );
  private readonly compare = h("a", { class: "button primary", attrs: { role: "button" } });
  private readonly head = h("tr");
  private readonly body = h("tbody");
  private readonly note = h("span", { attrs: { role: "status" } });
  private readonly problem = h("span", { class: "bad" });
  private readonly card = h("div", { class: "card runs-card" });
  private readonly listeners = new AbortController();
  private projectList = "";

  constructor(
    root: HTMLElement,
    private readonly page: Page,
  ) {
    this.pins = new Set(
      page.router.place.params.getAll("pin").length ? page.router.place.params.getAll("pin") : storedPins(),
    );
    const table = h(
      "table",
      { class: "runs-table", attrs: { "aria-label": "Runs", tabindex: -1 } },
      h(
        "colgroup",
        {},
        COLUMNS.map((column) => h("col", { class: `${column.class} col-${column.key || "tick"}` })),
      ),
      h("thead", {}, this.head),
      this.body,
    );
    fill(this.card, h("div", { class: "runs-wait" }, skeleton(8)));
    fill(
      root,
      h(
        "div",
        { class: "toolbar" },
        this.search.element,
        h(
          "div",
          { class: "controls" },
          this.states.element,
          this.projects,
          this.groups,
          this.compare,
          h("span", { class: "soft num" }, this.note),
          this.problem,
        ),
      ),
      this.card,
    );
    show(this.compare, false);
    this.table = table;
    const { signal } = this.listeners;
    addEventListener("scroll", () => nextFrame(this.window), { passive: true, signal });
    addEventListener("resize", () => nextFrame(this.window), { passive: true, signal });
    addEventListener("keydown", (event) => this.pressed(event), { signal });
    document.addEventListener("visibilitychange", () => !document.hidden && void this.poll(), { signal });
    void this.poll();
  }

  private readonly table: HTMLTableElement;
  private readonly window = (): void => {
    if (Math.abs(scrollY - this.drawnAt) > SLACK * HEIGHT || innerHeight !== this.drawnHeight) this.draw();
  };
  private drawnAt = -Infinity;
  private drawnHeight = 0;

  update(place: Place): void {
    const { params } = place;
    this.search.set(params.get("q") ?? "");
    this.states.set(params.get("state") ?? "");
    this.groups.value = params.get("group") ?? "";
    this.drawHead();
    this.arrange();
  }

  stop(): void {
    this.stopped = true;
    clearTimeout(this.timer);
    this.listeners.abort();
  }

  private async poll(): Promise<void> {
    clearTimeout(this.timer);
    if (this.stopped || document.hidden) return;
    try {
      const answer = await runsSince(this.version);
      if (this.stopped) return;
      this.failed = "";
      if (answer) {
        this.version = answer.version;
        ({ complete: this.complete, reading: this.reading } = answer);
        for (const key of answer.gone) this.rows.delete(key);
        for (const row of answer.rows) this.rows.set(row.key, row);
        this.arrange();
      }
    } catch (error) {
      this.failed = reason(error);
      if (!this.rows.size) this.arrange();
    }
    setText(this.problem, this.failed && this.rows.size ? this.failed : "");
    if (!this.stopped) this.timer = window.setTimeout(() => void this.poll(), this.failed ? 3000 : 500);
  }

  /** Filter, sort and group; then draw the visible rows. */
  private arrange(): void {
    const { params } = this.page.router.place;
    this.drawProjects(params.get("project") ?? "");
    const [wanted, state, project] = [this.search.matcher(), params.get("state") ?? "", params.get("project") ?? ""];
    const query = params.get("q") ?? "";
    const scores = new Map<string, number>();
    const shown = [...this.rows.values()].filter((row) => {
      if (state && !(state === "failed" ? FAILED.has(row.state) : row.state === state)) return false;
      if (project && row.project !== project) return false;
      const score = wanted.score(`${row.name} ${row.id} ${row.project} ${row.state} ${row.cause}`);
      scores.set(row.key, score);
      return score >= 0;
    });
    const column = columnOf(params.get("sort") ?? "");
    const down = (params.get("order") ?? (column?.down ? "down" : "up")) === "down" ? -1 : 1;
    const order = (one: RunRow, other: RunRow): number => {
      const pinned = Number(this.pins.has(other.key)) - Number(this.pins.has(one.key));
      if (pinned) return pinned;
      if (column) return absentLast(column.sort(one), column.sort(other), down) || newest(one, other);
      return (query ? (scores.get(other.key) ?? 0) - (scores.get(one.key) ?? 0) : 0) || newest(one, other);
    };
    shown.sort(order);
    this.items = grouped(shown, params.get("group") ?? "");
    const waits = this.reading ? `, loading ${this.reading}` : this.complete ? "" : ", loading";
    const all = `${this.rows.size} ${this.rows.size === 1 ? "run" : "runs"}${waits}`;
    setText(this.note, shown.length === this.rows.size ? all : `${shown.length} of ${all}`);
    const empty = emptyColumns([...this.rows.values()]);
    for (const { key } of COLUMNS) this.table.classList.toggle(`no-${key}`, empty.includes(key));
    this.drawFrame(shown.length);
    this.drawCompare();
    this.draw();
  }

  private drawFrame(many: number): void {
    const state = many
      ? "rows"
      : this.failed && !this.rows.size
        ? `failed ${this.failed}`
        : this.rows.size
          ? "none"
          : this.complete
            ? "empty"
            : "wait";
    if (this.card.dataset.shows === state) return;
    this.card.dataset.shows = state;
    if (state === "rows") fill(this.card, this.table);
    else if (state === "none")
      fill(
        this.card,
        empty(
          "No matching run",
          "No run matches the search and the filters.",
          h(
            "button",
            {
              class: "button",
              attrs: { type: "button" },
              on: { click: () => this.page.router.go({ params: new URLSearchParams() }) },
            },
            "Show all",
          ),
        ),
      );
    else if (state === "empty")
      fill(
        this.card,
        empty(
          "No runs yet",
          `There are no runs in ${this.page.server.root}. A new run appears here as soon as it starts:`,
          h(
            "pre",
            {},
            "stepscope run train.py      # any script, unchanged\nstepscope demo              # a small example",
          ),
        ),
      );
    else if (state === "wait") fill(this.card, h("div", { class: "runs-wait" }, skeleton(8)));
    else
      fill(
        this.card,
        failure(this.failed, () => void this.poll()),
      );
  }

  private drawProjects(current: string): void {
    const projects = [...new Set([...this.rows.values()].map((row) => row.project))].sort();
    const list = JSON.stringify([projects, current]);
    if (list === this.projectList) return;
    this.projectList = list;
    fill(
      this.projects,
      h("option", { attrs: { value: "" } }, "All projects"),
      projects.map((name) => h("option", { attrs: { value: name } }, name || "(no project)")),
    );
    this.projects.value = current;
    show(this.projects, projects.length > 1 || current !== "");
  }

  private drawHead(): void {
    const { params } = this.page.router.place;
    const sort = params.get("sort") ?? "";
    fill(
      this.head,
      COLUMNS.map((column) => {
        const active = sort === column.key && sort !== "";
        const down = (params.get("order") ?? (column.down ? "down" : "up")) === "down";
        const turn = (): void => {
          if (!active) this.page.router.param({ sort: column.key, order: null });
          else if (down === Boolean(column.down)) this.page.router.param({ order: down ? "up" : "down" });
          else this.page.router.param({ sort: null, order: null });
        };
        return h(
          "th",
          {
            class: `${column.class} cell-${column.key || "tick"}`,
            attrs: { scope: "col", "aria-sort": active ? (down ? "descending" : "ascending") : false },
          },
          column.title
            ? h("button", { title: column.help, attrs: { type: "button" }, on: { click: turn } }, column.title)
            : h("span", { class: "visually-hidden" }, column.help),
        );
      }),
    );
  }

  /** Put the visible rows into the table, with empty space for the others; unchanged rows are kept. */
  private draw(): void {
    if (!this.table.isConnected) return;
    const bodyTop = this.body.getBoundingClientRect().top;
    [this.drawnAt, this.drawnHeight] = [scrollY, innerHeight];
    const [top, bottom] = [-bodyTop - OVERSCAN * HEIGHT, -bodyTop + innerHeight + OVERSCAN * HEIGHT];
    let [above, below, y] = [0, 0, 0];
    const shown: HTMLTableRowElement[] = [];
    const alive = new Set<string>();
    for (const item of this.items) {
      const tall = "row" in item ? HEIGHT : GROUP_HEIGHT;
      if (y + tall < top) above += tall;
      else if (y > bottom) below += tall;
      else if ("row" in item) {
        shown.push(this.element(item.row));
        alive.add(item.row.key);
      } else
        shown.push(
          h(
            "tr",
            { class: "group" },
            h("td", { attrs: { colspan: 2 } }, `${item.group} · ${item.many}`),
            COLUMNS.slice(2).map((column) => h("td", { class: `${column.class} cell-${column.key}` })),
          ),
        );
      y += tall;
    }
    for (const key of this.held.keys()) if (!alive.has(key)) this.held.delete(key);
    const next = [space(above), ...shown, space(below)];
    next.forEach((row, place) => {
      const now = this.body.children[place];
      if (now !== row) this.body.insertBefore(row, now ?? null);
    });
    while (this.body.children.length > next.length) this.body.lastElementChild?.remove();
  }

  private element(row: RunRow): HTMLTableRowElement {
    const ticked = this.ticked().includes(row.key);
    const key = `${this.pins.has(row.key)} ${ticked} ${row.key === this.chosen}`;
    const held = this.held.get(row.key);
    if (held?.row === row && held.key === key) return held.element;
    const context = {
      pinned: this.pins.has(row.key),
      ticked,
      pin: () => this.pin(row.key),
      tick: () => this.tick(row.key),
      href: this.page.router.link({ view: "overview", run: row.key }),
    };
    const element = h(
      "tr",
      {
        class: "row",
        attrs: { "aria-selected": row.key === this.chosen ? "true" : false, "data-run": row.key },
        on: { click: (event) => this.clicked(event, row) },
      },
      COLUMNS.map((column: Column) =>
        h("td", { class: `${column.class} cell-${column.key || "tick"}` }, column.cell(row, context)),
      ),
    );
    held?.element.remove();
    this.held.set(row.key, { row, key, element });
    return element;
  }

  private clicked(event: MouseEvent, row: RunRow): void {
    const target = event.target as HTMLElement;
    if (target.closest("a, button, input, label") || getSelection()?.toString()) return;
    this.open(row.key);
  }

  private open(run: string): void {
    this.page.router.go({ view: "overview", run, params: new URLSearchParams() });
  }

  private pin(key: string): void {
    if (!this.pins.delete(key)) this.pins.add(key);
    try {
      localStorage.setItem(PINS, JSON.stringify([...this.pins]));
    } catch {
      // storage may be forbidden: pins then last as long as the page
    }
    this.arrange();
  }

  /** Return the selected runs; the address holds them, so that they survive a visit of another view. */
  private ticked(): string[] {
    return this.page.router.place.params.getAll("tick");
  }

  private tick(key: string): void {
    const params = new URLSearchParams(this.page.router.place.params);
    const others = this.ticked().filter((one) => one !== key);
    params.delete("tick");
    for (const one of others.length === this.ticked().length ? [...others, key] : others) params.append("tick", one);
    this.page.router.replace(params);
  }

  private drawCompare(): void {
    const keys = this.ticked().filter((key) => this.rows.has(key));
    show(this.compare, keys.length > 0);
    this.compare.textContent = keys.length > 1 ? `Compare ${keys.length} runs` : "Select another run to compare";
    if (keys.length > 1)
      this.compare.href = this.page.router.link({
        view: "compare",
        run: "",
        params: new URLSearchParams(keys.map((key) => ["run", key])),
      });
    else this.compare.removeAttribute("href");
  }

  private pressed(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const search = target.matches("input[type=search]");
    if (
      target.matches("input, select, button, a") &&
      !(search && ["ArrowDown", "ArrowUp", "Enter"].includes(event.key))
    )
      return;
    const rows = this.items.flatMap((item) => ("row" in item ? [item.row.key] : []));
    const place = rows.indexOf(this.chosen);
    const act: Record<string, () => void> = {
      ArrowDown: () => this.choose(rows[Math.min(rows.length - 1, place + 1)]),
      ArrowUp: () => this.choose(rows[Math.max(0, place - 1)]),
      Home: () => this.choose(rows[0]),
      End: () => this.choose(rows[rows.length - 1]),
      Enter: () => this.open(place < 0 ? (rows[0] ?? "") : this.chosen),
      p: () => this.chosen && this.pin(this.chosen),
      c: () => this.chosen && this.tick(this.chosen),
    };
    const found = act[event.key];
    if (!found || !rows.length) return;
    event.preventDefault();
    found();
  }

  private choose(key: string | undefined): void {
    if (!key) return;
    this.chosen = key;
    let y = 0;
    for (const item of this.items) {
      if ("row" in item && item.row.key === key) break;
      y += "row" in item ? HEIGHT : GROUP_HEIGHT;
    }
    const top = this.body.getBoundingClientRect().top + y;
    if (top < 90) scrollBy(0, top - 90);
    else if (top + HEIGHT > innerHeight) scrollBy(0, top + HEIGHT - innerHeight + 8);
    this.draw();
  }
}

function storedPins(): string[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(PINS) ?? "[]");
    return Array.isArray(found) ? found.filter((key): key is string => typeof key === "string") : [];
  } catch {
    return []; // no storage, or not ours: nothing is pinned
  }
}

function newest(one: RunRow, other: RunRow): number {
  return (other.created ?? 0) - (one.created ?? 0) || (one.key < other.key ? -1 : 1);
}

function absentLast(one: number | string | null, other: number | string | null, sign: number): number {
  if (one === other) return 0;
  if (one === null) return 1;
  if (other === null) return -1;
  return (one < other ? -1 : 1) * sign;
}

function grouped(rows: RunRow[], by: string): Item[] {
  if (by !== "project" && by !== "state") return rows.map((row) => ({ row }));
  const groups = new Map<string, RunRow[]>();
  for (const row of rows) groups.set(row[by], [...(groups.get(row[by]) ?? []), row]);
  return [...groups].flatMap(([group, some]) => [
    { group: group || "(none)", many: some.length },
    ...some.map((row) => ({ row })),
  ]);
}

function space(height: number): HTMLTableRowElement {
  return h("tr", { class: "space", attrs: { "aria-hidden": "true" } }, h("td", { style: { height: `${height}px` } }));
}

export const runs: View = {
  name: "runs",
  title: "Runs",
  of: "runs",
  mount: (root, page) => new RunsView(root, page),
};
