/** Compare two to twenty runs: common charts, differences of their numbers and of their configuration. */

import "./compare.css";
import { json, type Metrics, type RunComparison, reason } from "../api.ts";
import type { Axis } from "../chart.ts";
import { ChartControls } from "../chart_controls.ts";
import { ChartLink, zoomOf, zoomText } from "../chart_link.ts";
import type { CurveBuffer } from "../curve_buffer.ts";
import { Curves } from "../curves.ts";
import { type Child, fill, h, setText, show } from "../dom.ts";
import { count, duration, moment } from "../format.ts";
import { Panel } from "../panel.ts";
import type { Place } from "../router.ts";
import { search } from "../search.ts";
import type { Mounted, Page, View } from "../view.ts";
import { empty, failure, skeleton } from "../widgets.ts";
import { configTable, makeNamesUnique, numbersTable, phasesTable, runMark } from "./compare_tables.ts";
import { Picker } from "./run_picker.ts";
import { type Shared, shared } from "./shared_metrics.ts";

const MOST_CHARTS = 60;

class CompareView implements Mounted {
  private readonly picker: Picker;
  private readonly controls: ChartControls;
  private readonly zoom = h("button", {
    class: "button",
    attrs: { type: "button" },
    title: "Show everything",
    on: { click: () => this.link.setRange(null) },
  });
  private readonly many = h("span", { class: "soft" });
  private readonly tools = h("div", { class: "toolbar" });
  private readonly legend = h("div", { class: "compare-legend", attrs: { "aria-label": "Runs" } });
  private readonly charts = h("div", {});
  private readonly facts = h("div", { class: "compare-facts" });
  private readonly search = search("Find a metric", (query) => this.page.router.param({ q: query }));
  private panels = new Map<Panel, Shared>();
  private curves: Curves | null = null;
  private link = new ChartLink();
  private unfollow = (): void => undefined;
  private keys: string[] = [];
  private names: Metrics[] = [];
  private comparison: RunComparison | null = null;
  private drawn = "";
  private turn = 0;

  constructor(
    root: HTMLElement,
    private readonly page: Page,
  ) {
    // a diverged run must not flatten the others: outliers are clipped by default
    this.controls = new ChartControls(page.router, { clip: true }, { zoom: null });
    this.picker = new Picker(page.server.limits.runs, (keys) => this.choose(keys));
    fill(
      root,
      h("section", { class: "card compare-pick" }, this.picker.element),
      this.legend,
      this.facts,
      this.tools,
      this.charts,
    );
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
    for (const panel of this.panels.keys()) panel.stop();
    this.panels = new Map();
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
    this.turn += 1;
    const turn = this.turn;
    this.clear();
    this.comparison = null;
    fill(this.legend);
    fill(this.charts);
    fill(this.tools);
    if (this.keys.length < 2) {
      fill(this.facts, empty("Choose two or more runs", "The others are compared with the first."));
      return;
    }
    fill(this.facts, skeleton(4));
    try {
      const [names, comparison] = await Promise.all([
        Promise.all(this.keys.map((key) => json("/api/names", { run: key }))),
        json("/api/compare", { run: this.keys }),
      ]);
      if (turn !== this.turn) return;
      this.names = names;
      this.comparison = comparison;
      makeNamesUnique(comparison.runs);
      this.curves = new Curves(this.keys);
      if (names.some((one) => one.ranks.length > 1)) this.curves.setOptions({ fold: true });
      this.drawFacts(comparison);
      fill(
        this.tools,
        this.search.element,
        h("div", { class: "controls" }, ...this.controls.elements, this.zoom, this.many),
      );
      this.draw();
    } catch (error) {
      if (turn === this.turn)
        fill(
          this.facts,
          failure(reason(error), () => void this.load()),
        );
    }
  }

  private drawFacts(comparison: RunComparison): void {
    fill(
      this.legend,
      comparison.runs.map((run, place) =>
        runMark(run, place, this.page.router.link({ view: "overview", run: run.key }), {
          base: () => this.picker.makeBase(run.key),
          remove: () => this.picker.toggle(run.key),
        }),
      ),
    );
    this.facts.classList.toggle("compare-wide", comparison.runs.length > 2);
    fill(
      this.facts,
      numbersTable(comparison),
      configTable(comparison),
      comparison.notes.length
        ? h(
            "ul",
            { class: "soft compare-notes" },
            comparison.notes.map((note) => h("li", {}, note)),
          )
        : null,
    );
  }

  private draw(): void {
    const { params } = this.page.router.place;
    this.search.set(params.get("q") ?? "");
    const options = this.controls.set(params);
    if (!this.comparison || !this.curves) return;
    const wanted = this.search.matcher();
    const found = shared(this.names).filter((metric) => wanted.score(metric.name) >= 0);
    const key = JSON.stringify([options.axis, found.map((metric) => metric.name)]);
    if (key !== this.drawn) {
      this.drawn = key;
      this.setAxis(options.axis, params);
      this.drawCharts(found, this.comparison, this.curves);
    } else this.zoomTo(params);
    // slow steps of one run are what to look for: times are not clipped by default
    for (const [panel, { time }] of this.panels)
      panel.setOptions({ ...options, clip: options.clip && (!time || params.has("clip")) });
  }

  /** Lay out the charts: quality first, then speed. */
  private drawCharts(found: Shared[], comparison: RunComparison, curves: Curves): void {
    for (const panel of this.panels.keys()) panel.stop();
    const called = new Map(comparison.runs.map((run, place) => [run.key, { name: run.name || run.id, place }]));
    const shown = found.slice(0, MOST_CHARTS);
    this.panels = new Map(
      shown.map((metric) => [
        new Panel(
          { curves, link: this.link },
          {
            title: metric.name,
            names: [metric.name],
            unit: metric.unit,
            help: metric.help,
            every: "plain",
            label: (held: CurveBuffer) => called.get(held.run)?.name ?? held.run,
            order: (held: CurveBuffer) => called.get(held.run)?.place ?? 0,
          },
        ),
        metric,
      ]),
    );
    setText(
      this.many,
      found.length > MOST_CHARTS
        ? `${found.length} metrics, the first ${MOST_CHARTS} are shown: search for the others`
        : `${found.length} metrics`,
    );
    const part = (title: string, time: boolean, ...more: Child[]): Child => {
      const own = [...this.panels].filter(([, metric]) => metric.time === time).map(([panel]) => panel.element);
      return own.length || more.some(Boolean)
        ? h("section", { class: "compare-part" }, h("h2", {}, title), ...more, h("div", { class: "charts" }, own))
        : null;
    };
    const phases = this.page.router.place.params.get("q") ? null : phasesTable(comparison);
    fill(
      this.charts,
      this.panels.size
        ? [part("Quality", false), part("Time", true, phases)]
        : empty("No matching metric", "Try fewer words."),
    );
  }

  /** Set up an axis; ranges differ between axes. Time counts from the start of each run. */
  private setAxis(axis: Axis, params: URLSearchParams): void {
    const link = new ChartLink();
    link.unit = axis === "step" ? "step" : "time";
    this.link = link;
    if (this.curves)
      this.curves.starts =
        axis === "time" ? new Map((this.comparison?.runs ?? []).map((run) => [run.key, run.created])) : null;
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

  /** Apply the zoom of the address. */
  private zoomTo(params: URLSearchParams): void {
    const zoom = zoomOf(params);
    if (zoomText(this.link.unit, this.link.range) !== params.get("zoom"))
      this.link.setRange(zoom && zoom.unit === this.link.unit ? zoom.range : null);
  }

  private drawZoom(axis: Axis): void {
    const { range } = this.link;
    show(this.zoom, range !== null);
    const [from, to] = (range ?? []).map((x) =>
      axis === "step" ? count(Math.round(x)) : axis === "wall" ? moment(x) : duration(x),
    );
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
