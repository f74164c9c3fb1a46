/** One chart per metric of a run: grouped, searchable, on one axis. */

import "./training.css";
import { json, type MetricRow } from "../api.ts";
import { ChartControls, optionsOf } from "../chart_controls.ts";
import { fill, h, setText, show } from "../dom.ts";
import { count, duration, moment } from "../format.ts";
import { HistogramPanel } from "../histogram.ts";
import { epochMarkers, markersOf } from "../markers.ts";
import { axisOf } from "../metric_axis.ts";
import { type ChartOptions, type Marker, Panel } from "../panel.ts";
import type { Place } from "../router.ts";
import type { RunModel } from "../run.ts";
import { search } from "../search.ts";
import { type Mounted, type Page, runOf, type View } from "../view.ts";
import { empty, failure, field, icon, segmented, skeleton, toggle } from "../widgets.ts";
import { type Text, textCard, textsOf } from "./text_cards.ts";

const FOLD_RANKS = 16;
const [TALL, USUAL] = [340, 176];

class TrainingView implements Mounted {
  private readonly run: RunModel;
  private panels = new Map<string, Panel>();
  private histograms = new Map<string, HistogramPanel>();
  private texts = new Map<string, Text[]>();
  private arranged = "";
  private markers: Marker[] = [];
  private marked = "";
  private epochs = false;
  private stops: (() => void)[] = [];
  private readonly search = search("Search metrics", (query) => this.page.router.param({ q: query }));
  private readonly controls: ChartControls;
  private readonly events = toggle(
    "Events",
    true,
    (on) => this.page.router.param({ events: on ? null : "0" }),
    "Epochs, checkpoints, alerts and other events as marks",
  );
  private readonly rest = toggle(
    "Machine metrics",
    false,
    (all) => this.page.router.param({ all }),
    "Also show metrics of the machine and of Stepscope",
  );
  private readonly ranks = segmented(
    "Ranks",
    [
      ["band", "Band"],
      ["each", "Each"],
    ],
    "band",
    (ranks) => this.page.router.param({ ranks: ranks === "band" ? null : ranks }),
  );
  private readonly rankBox: HTMLElement;
  private readonly attempts = h("select", {
    attrs: { "aria-label": "Attempts" },
    on: { change: () => this.page.router.param({ attempt: this.attempts.value }) },
  });
  private readonly zoom = h("button", {
    class: "button",
    attrs: { type: "button" },
    title: "Show everything (0)",
    on: { click: () => this.run.link.setRange(null) },
  });
  private readonly body = h("div");

  constructor(
    root: HTMLElement,
    private readonly page: Page,
  ) {
    this.run = runOf(page);
    this.controls = new ChartControls(page.router);
    this.rankBox = field("Ranks", this.ranks.element);
    fill(
      root,
      h(
        "div",
        { class: "toolbar sticky" },
        this.search.element,
        h(
          "div",
          { class: "controls" },
          ...this.controls.elements,
          this.events.element,
          this.rest.element,
          this.rankBox,
          this.attempts,
          this.zoom,
        ),
      ),
      this.body,
    );
    fill(
      this.body,
      h(
        "div",
        { class: "charts" },
        Array.from({ length: 6 }, () =>
          h(
            "div",
            { class: "chart" },
            h("div", { class: "chart-head" }),
            h("div", { style: { height: `${USUAL}px` } }),
          ),
        ),
      ),
    );
    this.stops.push(
      this.run.names.listen(() => this.arrange()),
      this.run.events.listen(() => this.mark()),
      this.run.events.listen(() => void this.loadTexts()),
      this.run.link.onRange(() => this.drawZoom()),
    );
    void this.loadHistograms();
  }

  update(place: Place): void {
    const { params } = place;
    this.search.set(params.get("q") ?? "");
    const options = this.controls.set(params);
    this.events.set(params.get("events") === "0" ? "" : "1");
    this.rest.set(params.get("all") ?? "");
    this.ranks.set(options.ranks);
    this.chooseCurves();
    this.run.link.setUnit(options.axis === "step" ? "step" : "time");
    for (const [name, panel] of this.panels) this.applyOptions(name, panel);
    this.mark();
    this.arrange();
    this.drawZoom();
  }

  stop(): void {
    for (const stop of this.stops) stop();
    for (const panel of this.panels.values()) panel.stop();
    for (const panel of this.histograms.values()) panel.stop();
    this.run.curves.setOptions({});
  }

  private chartOptions(): ChartOptions {
    return optionsOf(this.page.router.place.params);
  }

  /** Choose the curves to fetch: attempts, and one folded curve for many ranks with the worst of them. */
  private chooseCurves(): void {
    const names = this.run.names.value;
    const attempt = this.page.router.place.params.get("attempt");
    const many = (names?.ranks.length ?? 1) > FOLD_RANKS && this.chartOptions().ranks === "band";
    this.run.curves.setOptions({
      ...(many ? { fold: true, worst: true } : {}),
      ...(attempt ? { attempts: [Number(attempt)] } : {}),
    });
  }

  private applyOptions(name: string, panel: Panel): void {
    const { params } = this.page.router.place;
    const options = this.chartOptions();
    const own = params.getAll("log").includes(name);
    panel.setOptions({ ...options, log: options.log !== own });
    const wide = params.getAll("wide").includes(name);
    if (panel.element.classList.toggle("wide", wide) !== (panel.element.dataset.tall === "1")) {
      panel.element.dataset.tall = wide ? "1" : "";
      panel.setHeight(wide ? TALL : USUAL);
    }
    const button = panel.element.querySelector(".chart-log");
    button?.setAttribute("aria-pressed", String(options.log !== own));
  }

  private mark(): void {
    const on = this.page.router.place.params.get("events") !== "0";
    const events = this.run.events.value?.events ?? [];
    const recorded = events.some((event) => event.kind === "epoch");
    const markers = on
      ? [...markersOf(events), ...(recorded ? [] : epochMarkers(this.run.curves.get("epoch")?.whole ?? []))]
      : [];
    const key = JSON.stringify(markers);
    if (key === this.marked) return;
    this.marked = key;
    this.markers = markers;
    for (const panel of this.panels.values()) panel.setMarkers(markers);
  }

  /** Load the metric `epoch`, if there is one, to mark epochs. */
  private followEpochs(names: readonly MetricRow[]): void {
    if (this.epochs || !names.some((metric) => metric.name === "epoch")) return;
    this.epochs = true;
    this.stops.push(this.run.curves.watch("epoch", 400, () => this.mark()));
  }

  /** Lay out the charts that match the search; existing charts are reused. */
  private arrange(): void {
    const names = this.run.names.value;
    if (!names) {
      if (this.run.names.error)
        fill(
          this.body,
          failure(this.run.names.error, () => this.run.names.refresh()),
        );
      return;
    }
    show(this.rankBox, names.ranks.length > 1);
    this.drawAttempts(names.attempts);
    this.chooseCurves();
    this.followEpochs(names.metrics);
    const { params } = this.page.router.place;
    const query = params.get("q") ?? "";
    const wanted = this.search.matcher();
    const known = names.metrics.filter(
      (metric) =>
        params.get("all") === "1" ||
        metric.source === "training" ||
        metric.source === "phase" ||
        (query !== "" && metric.source === "machine"),
    );
    const scored = known
      .map((metric) => ({ metric, score: wanted.score(metric.name) }))
      .filter((one) => one.score >= 0);
    if (query) scored.sort((one, other) => other.score - one.score);
    const shut = params.getAll("shut");
    const histograms = [...this.histograms].filter(([name]) => wanted.score(name) >= 0);
    const texts = [...this.texts].filter(([name]) => wanted.score(name) >= 0);
    const key = JSON.stringify([
      scored.map((one) => one.metric.name),
      query !== "",
      shut,
      histograms.map(([name]) => name),
      texts,
    ]);
    if (key === this.arranged) return;
    this.arranged = key;
    const metrics = scored.map((one) => one.metric);
    const others = [
      ...histograms.map(([, panel]) => panel.element),
      ...texts.map(([name, some]) => textCard(name, some)),
    ];
    if (!metrics.length && !others.length) this.nothing(query, names.metrics.length);
    else if (query)
      fill(
        this.body,
        h(
          "div",
          { class: "charts" },
          metrics.map((metric) => this.panel(metric).element),
          others,
        ),
      );
    else fill(this.body, this.grouped(metrics, new Set(shut)));
    this.mark();
  }

  private nothing(query: string, all: number): void {
    const running = this.run.live.status?.state === "running";
    fill(
      this.body,
      query
        ? empty(
            "No matching metric",
            `No metric matches ${query}.`,
            h(
              "button",
              { class: "button", attrs: { type: "button" }, on: { click: () => this.page.router.param({ q: null }) } },
              "Show all",
            ),
          )
        : empty(
            running ? "No metrics yet" : "No metrics",
            all
              ? "This run has only machine metrics."
              : running
                ? "The first values appear here automatically."
                : "This run recorded none. To record a metric:",
            all ? null : h("pre", {}, 'run.log({"loss": loss})'),
          ),
    );
  }

  private grouped(metrics: MetricRow[], shut: Set<string>): HTMLElement[] {
    const groups = new Map<string, MetricRow[]>();
    for (const metric of metrics) groups.set(metric.group, [...(groups.get(metric.group) ?? []), metric]);
    const found = [...groups].map(([group, some]) =>
      this.group(group, group || "Main", `${some.length}`, shut, () =>
        some.map((metric) => this.panel(metric).element),
      ),
    );
    if (this.histograms.size)
      found.push(
        this.group("histograms:", "Histograms", `${this.histograms.size}`, shut, () =>
          [...this.histograms.values()].map((panel) => panel.element),
        ),
      );
    if (this.texts.size)
      found.push(
        this.group("texts:", "Texts", `${this.texts.size}`, shut, () =>
          [...this.texts].map(([name, some]) => textCard(name, some)),
        ),
      );
    return found;
  }

  private group(key: string, title: string, many: string, shut: Set<string>, charts: () => HTMLElement[]): HTMLElement {
    const open = !shut.has(key || "-");
    const turn = (): void => {
      const params = new URLSearchParams(this.page.router.place.params);
      const now = new Set(params.getAll("shut"));
      if (!now.delete(key || "-")) now.add(key || "-");
      params.delete("shut");
      for (const word of now) params.append("shut", word);
      this.page.router.go({ params });
    };
    return h(
      "section",
      { class: "group", attrs: { "data-group": key } },
      h(
        "h2",
        {},
        h(
          "button",
          { class: "group-head", attrs: { type: "button", "aria-expanded": String(open) }, on: { click: turn } },
          icon("M6 4l4 4-4 4"),
          title,
          h("span", { class: "soft num" }, many),
        ),
      ),
      open ? h("div", { class: "charts" }, charts()) : null,
    );
  }

  private panel(metric: MetricRow): Panel {
    const held = this.panels.get(metric.name);
    if (held) return held;
    const { name } = metric;
    const list = (param: string): void => {
      const params = new URLSearchParams(this.page.router.place.params);
      const now = params.getAll(param).filter((word) => word !== "*");
      const all = params.getAll(param).includes("*") ? ["*"] : [];
      params.delete(param);
      for (const word of [...all, ...(now.includes(name) ? now.filter((one) => one !== name) : [...now, name])])
        params.append(param, word);
      this.page.router.go({ params });
    };
    const tool = (text: string, title: string, kind: string, act: () => void): HTMLElement =>
      h("button", { class: kind, title, attrs: { type: "button" }, on: { click: act } }, text);
    const tools = h(
      "span",
      { class: "chart-tools" },
      tool("log", "Logarithmic axis", "chart-log", () => list("log")),
      tool("png", "Save as a picture", "chart-png", () => void this.save(panel, name)),
    );
    const panel: Panel = new Panel(this.run, {
      title: name,
      names: [name],
      unit: metric.unit,
      help: metric.help,
      height: USUAL,
      markers: this.markers,
      extra: [tools],
      enlarge: () => list("wide"),
      ...axisOf(metric),
    });
    this.panels.set(name, panel);
    this.applyOptions(name, panel);
    return panel;
  }

  private async save(panel: Panel, name: string): Promise<void> {
    const address = URL.createObjectURL(await panel.png());
    h("a", { attrs: { href: address, download: `${name.replace(/[^\w.-]+/g, "_")}.png` } }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  private drawAttempts(attempts: number[]): void {
    show(this.attempts, attempts.length > 1);
    if (this.attempts.options.length !== attempts.length + 1) {
      fill(
        this.attempts,
        h("option", { attrs: { value: "" } }, "All attempts"),
        attempts.map((one) => h("option", { attrs: { value: one } }, `Attempt ${one}`)),
      );
    }
    this.attempts.value = this.page.router.place.params.get("attempt") ?? "";
  }

  private drawZoom(): void {
    const { range, unit } = this.run.link;
    show(this.zoom, range !== null);
    if (!range) return;
    const wall = this.chartOptions().axis === "wall";
    const origin = this.run.curves.origin ?? 0;
    const [from, to] = range.map((x) =>
      unit === "step" ? count(Math.round(x)) : wall ? moment(x) : duration(x - origin),
    );
    setText(this.zoom, `${unit === "step" ? "Step " : ""}${from} – ${to}  ✕`);
  }

  private async loadTexts(): Promise<void> {
    try {
      this.texts = textsOf((await json("/api/events", { run: this.run.key, kind: "log", limit: 500 })).events);
      this.arrange();
    } catch {
      // the charts show the error of the server; loaded texts stay
    }
  }

  private async loadHistograms(): Promise<void> {
    try {
      const { names } = await json("/api/histograms", { run: this.run.key });
      for (const name of names)
        if (!this.histograms.has(name))
          this.histograms.set(name, new HistogramPanel(this.run.key, name, this.run.link));
      if (names.length) this.arrange();
    } catch {
      // without histograms, or after an error that the charts show, this part stays hidden
    }
  }
}

export const training: View = {
  name: "training",
  title: "Training",
  of: "run",
  mount(root, page) {
    fill(root, skeleton(3));
    return new TrainingView(root, page);
  },
};
