/** The ranks of a run: who is late, a map of ranks over steps, the steps of one rank, and a row for each. */

import "./ranks.css";
import { json, type RankHeat, type Ranks, reason } from "../api.ts";
import { fill, h, setText, show } from "../dom.ts";
import { capital, count } from "../format.ts";
import { redraw } from "../redraw.ts";
import type { Place } from "../router.ts";
import type { RunModel } from "../run.ts";
import type { Mounted, Page, View } from "../view.ts";
import { empty, failure, field, segmented, skeleton } from "../widgets.ts";
import { consoleOfStep } from "./console_link.ts";
import { hangCard, standings } from "./hang.ts";
import { RankList } from "./rank_list.ts";
import { type Cell, RankMapChart } from "./rank_map.ts";
import { BY_RANK, grouped, lateForAWhile, type RankGroup, WORST } from "./rank_order.ts";
import { drawPanel, inWords } from "./rank_panel.ts";

/** What the map shows unless chosen otherwise: how late each rank is. */
const LATE = "step";
/** Milliseconds between two requests while the run goes on, and as a multiple of their duration. */
const [AGAIN_MS, AGAIN_SHARE] = [4000, 5];
const PAUSE_MS = 120;

class RanksView implements Mounted {
  private readonly tools = h("div", { class: "toolbar" });
  private readonly summary = h("p", { class: "rank-summary", attrs: { role: "status" } });
  private readonly hang = h("div");
  private readonly panel = h("aside", { class: "card rank-panel", attrs: { "aria-label": "Steps of one rank" } });
  private readonly told = h("p", { class: "visually-hidden", attrs: { role: "status" } });
  private readonly middle: HTMLElement;
  private readonly map: RankMapChart;
  private readonly list: RankList;
  private readonly note = h("p", { class: "soft rank-note" });
  private ranks: Ranks | null = null;
  private grid: RankHeat | null = null;
  private groups: RankGroup[] = [];
  private lateThen = "";
  private drawnTools = "";
  private asked = 0;
  private took = 0;
  private busy = false;
  private seen: number | null = null;
  private standings: number | null = null;
  private timer = 0;
  private panelAsked = 0;
  private stopped = false;
  /** Whether the selection came by hand, so that a screen reader says it. */
  private isTold = false;
  private readonly stops: (() => void)[];

  constructor(
    private readonly root: HTMLElement,
    private readonly page: Page,
    private readonly run: RunModel,
  ) {
    run.link.setUnit("step");
    this.map = new RankMapChart({
      select: (cell) => this.select(cell, true),
      zoom: (steps) => run.link.setRange(steps),
    });
    this.list = new RankList((rank) => this.select({ rank, step: this.worstStep(rank) }, true));
    this.middle = h("div", { class: "rank-middle" }, this.map.element, this.panel);
    fill(root, this.tools, this.hang, this.summary, this.middle, this.note, this.list.element, this.told);
    fill(this.panel, skeleton(6));
    show(this.list.element, false);
    this.drawTools();
    void this.load();
    this.stops = [
      run.live.listen({ status: (status) => this.follow(status.step), reset: () => void this.load() }),
      run.names.listen(() => this.drawTools()),
      run.events.listen(() => this.heard(standings(run.events.value?.events ?? []))),
      run.link.onRange(() => void this.load()),
    ];
  }

  update(place: Place, before: Place): void {
    const changed = (name: string): boolean => place.params.get(name) !== before.params.get(name);
    if (changed("what")) void this.load();
    else if (changed("by")) this.drawMap();
    if (changed("what") || changed("by")) this.drawTools();
    const cell = this.chosen;
    const { selected } = this.map;
    if (this.grid && cell && (cell.rank !== selected?.rank || cell.step !== selected.step)) this.select(cell);
  }

  stop(): void {
    this.stopped = true;
    clearTimeout(this.timer);
    for (const stop of this.stops) stop();
    this.map.stop();
  }

  private get what(): string {
    return this.page.router.place.params.get("what") ?? LATE;
  }

  private get by(): string {
    const chosen = this.page.router.place.params.get("by") ?? WORST;
    return chosen === BY_RANK || this.ranks?.dimensions.includes(chosen) ? chosen : WORST;
  }

  /** The rank and step of the address. */
  private get chosen(): Cell | null {
    const { params } = this.page.router.place;
    const [rank, step] = [Number(params.get("rank") ?? Number.NaN), Number(params.get("step") ?? Number.NaN)];
    if (!Number.isInteger(rank)) return null;
    return { rank, step: Number.isInteger(step) ? step : this.worstStep(rank) };
  }

  private get steps(): { from?: number; to?: number } {
    const range = this.run.link.range;
    return range ? { from: Math.max(0, Math.floor(range[0])), to: Math.max(0, Math.ceil(range[1]) - 1) } : {};
  }

  private follow(step: number | null): void {
    if (step === this.seen || performance.now() - this.asked < Math.max(AGAIN_MS, AGAIN_SHARE * this.took)) return;
    this.seen = step;
    void this.load();
  }

  /** Load again if ranks stand still, go on or end: then no step brings the news. */
  private heard(standings: number): void {
    if (this.standings !== null && standings !== this.standings) void this.load();
    this.standings = standings;
  }

  private async load(): Promise<void> {
    if (this.busy) {
      this.asked = -Infinity; // as soon as the status comes again
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.load(), PAUSE_MS);
      return;
    }
    this.busy = true;
    this.asked = performance.now();
    const { key } = this.run;
    try {
      const [ranks, grid] = await Promise.all([
        json("/api/ranks", { run: key, ...this.steps }),
        json("/api/ranks/map", { run: key, what: this.what, ...this.steps }),
      ]);
      if (this.stopped) return;
      [this.ranks, this.grid] = [ranks, grid];
      this.draw(ranks);
    } catch (error) {
      if (!this.stopped && !this.ranks)
        fill(
          this.root,
          failure(reason(error), () => this.again()),
        );
    } finally {
      this.took = performance.now() - this.asked;
      this.busy = false;
    }
  }

  private again(): void {
    fill(this.root, this.tools, this.hang, this.summary, this.middle, this.note, this.list.element, this.told);
    void this.load();
  }

  private draw(ranks: Ranks): void {
    if (ranks.rows.length < 2) {
      const text =
        "This view compares the ranks of a job. Launch one with torchrun, or with any launcher that sets RANK.";
      fill(this.root, empty(ranks.rows.length ? "This run has one rank" : "No rank has written yet", text));
      return;
    }
    if (!this.tools.isConnected)
      fill(this.root, this.tools, this.hang, this.summary, this.middle, this.note, this.list.element, this.told);
    redraw(this.hang, ranks.hang, () => (ranks.hang ? hangCard(ranks.hang) : null));
    setText(this.summary, capital(ranks.summary));
    this.summary.classList.toggle("bad", ranks.late.length > 0 || ranks.rows.some((row) => !row.is_well));
    const span =
      ranks.last_step === null ? "" : `Rows: means of steps ${count(ranks.first_step)} to ${count(ranks.last_step)}. `;
    const clocks = ranks.clocks && ` Clocks: ${ranks.clocks}.`;
    setText(this.note, `${span}${capital(ranks.definition)}.${clocks}`);
    this.drawTools();
    this.drawMap();
    show(this.list.element, true);
    this.list.set(ranks.rows, ranks.usual_seconds ?? 0);
    if (!this.map.selected) this.start(ranks);
  }

  /** Show the rank of the address, or the worst. */
  private start(ranks: Ranks): void {
    const chosen = this.chosen;
    if (chosen && this.grid?.ranks.includes(chosen.rank)) {
      this.select(chosen);
      return;
    }
    const worst = ranks.rows[0];
    if (!worst || !this.grid?.ranks.includes(worst.rank)) {
      fill(this.panel, h("p", { class: "soft" }, "No step was recorded yet."));
      return;
    }
    this.select({ rank: worst.rank, step: this.worstStep(worst.rank) });
  }

  private drawMap(): void {
    const { ranks, grid } = this;
    if (!ranks || !grid) return;
    // Rows move only if the late ranks change: a map that is read must hold still.
    const noted = new Set(ranks.rows.filter((row) => row.is_notable).map((row) => row.rank));
    for (const rank of lateForAWhile(grid)) noted.add(rank);
    const late = `${this.by} ${this.what} ${ranks.rows.length} ${[...noted].sort().join()}`;
    if (late !== this.lateThen) {
      const rows = [...ranks.rows].sort((one, other) => Number(noted.has(other.rank)) - Number(noted.has(one.rank)));
      this.groups = grouped(rows, this.by);
    }
    this.lateThen = late;
    this.map.set(grid, this.groups, ranks.rows, noted, grid.is_difference ? "How late each rank is" : grid.what);
  }

  private drawTools(): void {
    const metrics = (this.run.names.value?.metrics ?? []).filter((metric) => metric.source !== "machine");
    const phases = metrics.filter((metric) => metric.source === "phase").map((metric) => metric.name);
    const others = metrics.filter((metric) => metric.source === "training").map((metric) => metric.name);
    const dimensions = this.ranks?.dimensions ?? [];
    const key = JSON.stringify([phases, others, dimensions, this.what, this.by]);
    if (key === this.drawnTools) return;
    this.drawnTools = key;
    const option = (name: string, text: string): HTMLElement =>
      h("option", { attrs: { value: name, selected: name === this.what } }, text);
    const group = (label: string, names: string[]): HTMLElement | null =>
      names.length
        ? h(
            "optgroup",
            { attrs: { label } },
            names.map((name) => option(name, name)),
          )
        : null;
    const select = h(
      "select",
      { on: { change: () => this.page.router.param({ what: select.value === LATE ? null : select.value }) } },
      option(LATE, "how late each rank is"),
      group("Phases", phases),
      group("Metrics", others),
    );
    const orders = [[WORST, "Worst first"], [BY_RANK, "Rank"], ...dimensions.map((name) => [name, capital(name)])];
    fill(
      this.tools,
      field("Show", select),
      h(
        "div",
        { class: "controls" },
        segmented("Order", orders as [string, string][], this.by, (by) =>
          this.page.router.param({ by: by === WORST ? null : by }),
        ).element,
      ),
      h("span", { class: "soft rank-hint" }, "Click a cell for its phases; drag to zoom, double-click to reset."),
    );
  }

  /** Return the first step of the bucket in which a rank is the latest; the last one of a rank that ended all. */
  private worstStep(rank: number): number {
    const own = this.grid?.values[this.grid.ranks.indexOf(rank)] ?? [];
    const isOver = this.ranks?.rows.find((row) => row.rank === rank)?.blame;
    let found = own.findLastIndex((amount) => amount !== null);
    own.forEach((amount, at) => {
      if (!isOver && amount !== null && amount > (own[found] ?? -Infinity)) found = at;
    });
    return this.grid?.edges[Math.max(0, found)] ?? 0;
  }

  /** Show a rank in some steps; what a person selects is kept in the address. */
  private select(cell: Cell, isByHand = false): void {
    this.isTold = isByHand;
    this.map.mark(cell);
    this.list.mark(cell.rank);
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.loadPanel(cell), PAUSE_MS);
    if (isByHand) this.page.router.param({ rank: cell.rank, step: cell.step });
  }

  private async loadPanel(cell: Cell): Promise<void> {
    const edges = this.grid?.edges ?? [];
    const after = edges.findIndex((edge) => edge > cell.step);
    const [from, next] = [edges[after - 1], edges[after]];
    if (from === undefined || next === undefined) return;
    const number = ++this.panelAsked;
    this.panel.setAttribute("aria-busy", "true");
    try {
      const steps = { from, to: Math.max(from, Math.min(next - 1, this.grid?.last_step ?? next - 1)) };
      const step = await json("/api/ranks/step", { run: this.run.key, rank: cell.rank, ...steps });
      if (this.stopped || number !== this.panelAsked) return;
      drawPanel(
        this.panel,
        step,
        this.ranks?.rows.find((row) => row.rank === cell.rank),
        this.page.router.link({ view: "console", params: consoleOfStep(cell.rank, from) }),
      );
      if (this.isTold) setText(this.told, inWords(step));
    } catch (error) {
      if (!this.stopped && number === this.panelAsked)
        fill(
          this.panel,
          failure(reason(error), () => void this.loadPanel(cell)),
        );
    } finally {
      if (number === this.panelAsked) this.panel.removeAttribute("aria-busy");
    }
  }
}

export const ranks: View = {
  name: "ranks",
  title: "Ranks",
  of: "run",
  mount(root: HTMLElement, page: Page): Mounted {
    return page.run ? new RanksView(root, page, page.run) : {};
  },
};
