/** Two to twenty runs side by side: charts laid over each other, what differs in their configuration, and by how much. */

import "./compare.css";
import type { Place } from "../address.ts";
import { api, json, reason, type Names } from "../api.ts";
import type { Axis } from "../chart.ts";
import { Curves } from "../curves.ts";
import { fill, h, setText, show } from "../dom.ts";
import { clock, moment, number } from "../format.ts";
import type { Held } from "../held.ts";
import { Link, zoomOf, zoomText } from "../link.ts";
import type { Mounted, Page, View } from "../page.ts";
import { Panel } from "../panel.ts";
import { empty, failure, segmented, skeleton } from "../parts.ts";
import { configTable, numbersTable, phasesTable, runMark, tellApart, type Comparison } from "./compare_tables.ts";
import { Picker } from "./run_picker.ts";
import { shared } from "./shared_metrics.ts";

const MOST_CHARTS = 60;

class CompareView implements Mounted {
  private readonly picker: Picker;
  private readonly axis = segmented("Axis", [["step", "Step"], ["time", "Time"], ["wall", "Clock"]], "step", (x) => this.page.router.param({ x: x === "step" ? null : x, zoom: null }));
  private readonly zoom = h("button", { class: "button", attrs: { type: "button" }, title: "Show everything", on: { click: () => this.link.setRange(null) } });
  private readonly many = h("span", { class: "soft" });
  private readonly tools = h("div", { class: "toolbar" });
  private readonly legend = h("div", { class: "compare-legend", attrs: { "aria-label": "Runs" } });
  private readonly charts = h("div", { class: "charts" });
  private readonly facts = h("div", { class: "compare-facts" });
  private readonly search = h("input", {
    attrs: { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric" },
    on: { input: () => this.page.router.param({ q: this.search.value }) },
  });
  private panels: Panel[] = [];
  private curves: Curves | null = null;
  private link = new Link();
  private unfollow = (): void => undefined;
  private keys: string[] = [];
  private names: Names[] = [];
  private comparison: Comparison | null = null;
  private drawn = "";
  private turn = 0;

  constructor(
    root: HTMLElement,
    private readonly page: Page,
  ) {
    this.picker = new Picker(page.server.limits.runs, (keys) => this.choose(keys));
    fill(root, h("section", { class: "card compare-pick" }, this.picker.element), this.legend, this.facts, this.tools, this.charts);
  }

  update(place: Place): void {
    const keys = [...new Set(place.params.getAll("run"))].slice(0, this.page.server.limits.runs);
    if (!this.turn || JSON.stringify(keys) !== JSON.stringify(this.keys)) {
      this.keys = keys;
      this.picker.set(keys);
      void this.load();
    } else this.draw();
  }

  stop(): void {
    this.turn += 1;
    this.picker.stop();
    this.clear();
  }

  private clear(): void {
    for (const panel of this.panels) panel.stop();
    this.panels = [];
    this.curves?.stop();
    this.curves = null;
    this.drawn = "";
  }

  private choose(keys: string[]): void {
    const params = new URLSearchParams(this.page.router.place.params);
    params.delete("run");
    for (const key of keys) params.append("run", key);
    this.page.router.go({ params });
  }

  private async load(): Promise<void> {
    const turn = (this.turn += 1);
    this.clear();
    this.comparison = null;
    fill(this.legend);
    fill(this.charts);
    fill(this.tools);
    if (this.keys.length < 2) {
      fill(this.facts, empty("Choose two runs or more", "The first is what the others are compared with."));
      return;
    }
    fill(this.facts, skeleton(4));
    try {
      const [names, comparison] = await Promise.all([
        Promise.all(this.keys.map((key) => api.names(key))),
        json<Comparison>("/api/compare", { run: this.keys }),
      ]);
      if (turn !== this.turn) return;
      this.names = names;
      this.comparison = comparison;
      tellApart(comparison.runs);
      this.curves = new Curves(this.keys);
      if (names.some((one) => one.ranks.length > 1)) this.curves.setOptions({ fold: true });
      this.drawFacts(comparison);
      fill(this.tools, h("div", { class: "search" }, this.search), this.axis.element, this.zoom, this.many);
      this.draw();
    } catch (error) {
      if (turn === this.turn) fill(this.facts, failure(reason(error), () => void this.load()));
    }
  }

  private drawFacts(comparison: Comparison): void {
    fill(this.legend, comparison.runs.map((run, place) => runMark(run, place, this.page.router.link({ view: "overview", run: run.key }), {
      base: () => this.picker.makeBase(run.key),
      remove: () => this.picker.toggle(run.key),
    })));
    this.facts.classList.toggle("compare-wide", comparison.runs.length > 3);
    fill(this.facts, numbersTable(comparison), h("div", { class: "stack" }, phasesTable(comparison), configTable(comparison)),
      comparison.notes.length ? h("ul", { class: "soft compare-notes" }, comparison.notes.map((note) => h("li", {}, note))) : null);
  }

  private draw(): void {
    const { params } = this.page.router.place;
    if (this.search.value !== (params.get("q") ?? "")) this.search.value = params.get("q") ?? "";
    if (!this.comparison || !this.curves) return;
    const words = (params.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const found = shared(this.names).filter((metric) => words.every((word) => metric.name.toLowerCase().includes(word)));
    const word = params.get("x");
    const axis: Axis = word === "time" || word === "wall" ? word : "step";
    const key = JSON.stringify([axis, found.map((metric) => metric.name)]);
    if (key === this.drawn) return this.zoomTo(params);
    this.drawn = key;
    for (const panel of this.panels) panel.stop();
    this.axis.set(axis);
    this.begin(axis, params);
    const source = { curves: this.curves, link: this.link };
    const called = new Map(this.comparison.runs.map((run, place) => [run.key, { name: run.name || run.id, place }]));
    this.panels = found.slice(0, MOST_CHARTS).map((metric) => new Panel(source, {
      title: metric.name, names: [metric.name], unit: metric.unit, help: metric.help,
      label: (held: Held) => called.get(held.run)?.name ?? held.run,
      order: (held: Held) => called.get(held.run)?.place ?? 0,
    }));
    for (const panel of this.panels) panel.look({ axis });
    setText(this.many, `${found.length} metrics${found.length > MOST_CHARTS ? `, the first ${MOST_CHARTS} are drawn: type to find the others` : ""}`);
    fill(this.charts, this.panels.length ? this.panels.map((panel) => panel.element) : empty("No metric matches", "Try fewer words."));
  }

  /** Begin an axis: what a range means is another thing on each. Time counts from each run's own begin. */
  private begin(axis: Axis, params: URLSearchParams): void {
    const link = new Link();
    link.unit = axis === "step" ? "step" : "time";
    this.link = link;
    if (this.curves) this.curves.starts = axis === "time" ? new Map((this.comparison?.runs ?? []).map((run) => [run.key, run.created ?? 0])) : null;
    this.zoomTo(params);
    this.unfollow();
    this.unfollow = this.curves?.follow(link) ?? (() => undefined);
    link.onRange((range) => {
      if (link !== this.link) return;
      this.page.router.param({ zoom: zoomText(link.unit, range) }, true);
      this.drawZoom(axis);
    });
    this.drawZoom(axis);
  }

  /** The address says what is in view. */
  private zoomTo(params: URLSearchParams): void {
    const zoom = zoomOf(params);
    if (zoomText(this.link.unit, this.link.range) !== params.get("zoom")) this.link.setRange(zoom && zoom.unit === this.link.unit ? zoom.range : null);
  }

  private drawZoom(axis: Axis): void {
    const { range } = this.link;
    show(this.zoom, range !== null);
    const [from, to] = (range ?? []).map((x) => (axis === "step" ? number(Math.round(x)) : axis === "wall" ? moment(x) : clock(x)));
    setText(this.zoom, `${axis === "step" ? "Step " : ""}${from} – ${to}  ✕`);
  }
}

export const compare: View = {
  name: "compare",
  title: "Compare",
  of: "runs",
  mount(root: HTMLElement, page: Page): Mounted {
    return new CompareView(root, page);
  },
};
