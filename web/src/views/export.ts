/** Export the data as files, as pictures, or as Python, SQL and shell code that reads the same numbers. */

import "./export.css";
import { json, type MetricRow, type Recipe, reason } from "../api.ts";
import { zoomOf } from "../chart_link.ts";
import { fill, h, setText, show } from "../dom.ts";
import { short, value } from "../format.ts";
import { Panel } from "../panel.ts";
import type { Place } from "../router.ts";
import type { RunModel } from "../run.ts";
import type { Mounted, Page, View } from "../view.ts";
import { card, empty, failure, skeleton } from "../widgets.ts";
import { fileName } from "./file_name.ts";

const FORMATS: [string, string, string][] = [
  ["csv", "CSV", "one row per point: name, rank, attempt, step, time, value; opens in any spreadsheet"],
  ["parquet", "Parquet", "the same columns, typed and compressed; for pandas, polars, DuckDB"],
  ["jsonl", "JSON lines", "one object per point; for scripts and pipelines"],
  ["json", "JSON", "the run and its metrics in one document"],
  ["html", "Report", "summary, charts, diagnosis and alerts of the whole run in one HTML file that works offline"],
];
const RECIPES: [keyof Recipe, string][] = [
  ["python", "Python"],
  ["sql", "SQL"],
  ["shell", "Shell"],
];
const MOST_SHOWN = 300;
const MOST_PICTURES = 6;

/** Save a file in the browser. */
function save(blob: Blob, name: string): void {
  const href = URL.createObjectURL(blob);
  h("a", { attrs: { href, download: name } }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

class ExportView implements Mounted {
  private readonly list = h("ul", { class: "export-list" });
  private readonly ways = h("div", { class: "export-ways" });
  private readonly status = h("span", { class: "soft", attrs: { role: "status" } });
  private readonly files = h("div", { class: "export-files" });
  private readonly recipe = h("div", { class: "export-recipes" });
  private readonly pictures = h("div", { class: "charts" });
  private readonly search = h("input", {
    attrs: { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric" },
    on: { input: () => this.page.router.param({ q: this.search.value }) },
  });
  private panels: Panel[] = [];
  private metrics: MetricRow[] | null = null;
  private drawn = "";
  private turn = 0;
  private readonly stops: (() => void)[] = [];

  constructor(
    root: HTMLElement,
    private readonly page: Page,
    private readonly run: RunModel,
  ) {
    const pick = (text: string, names: () => string[]): HTMLElement =>
      h("button", { class: "button", attrs: { type: "button" }, on: { click: () => this.choose(names()) } }, text);
    fill(
      root,
      h(
        "div",
        { class: "export-split" },
        h(
          "section",
          { class: "card export-metrics" },
          h("h2", { class: "card-title" }, "Metrics"),
          h(
            "div",
            { class: "toolbar" },
            h("div", { class: "search" }, this.search),
            pick("Select all", () => this.matching().map((metric) => metric.name)),
            pick("Clear", () => []),
          ),
          this.status,
          this.list,
        ),
        this.ways,
      ),
    );
    fill(
      this.ways,
      card("Files", this.files),
      card("Code for the same numbers", this.recipe),
      card("Pictures", this.pictures),
    );
    fill(this.list, skeleton(6));
    this.stops.push(run.names.listen(() => this.arrived()));
  }

  update(place: Place): void {
    if (this.search.value !== (place.params.get("q") ?? "")) this.search.value = place.params.get("q") ?? "";
    this.draw();
  }

  stop(): void {
    this.turn += 1;
    for (const stop of this.stops) stop();
    for (const panel of this.panels) panel.stop();
  }

  private arrived(): void {
    const { value, error } = this.run.names;
    if (value) this.metrics = value.metrics;
    else if (error)
      fill(
        this.list,
        failure(error, () => this.run.names.refresh()),
      );
    this.draw();
  }

  private chosen(): string[] {
    const known = new Set((this.metrics ?? []).map((metric) => metric.name));
    return this.page.router.place.params
      .getAll("name")
      .filter((name) => known.has(name))
      .slice(0, this.page.server.limits.names);
  }

  private choose(names: string[]): void {
    const params = new URLSearchParams(this.page.router.place.params);
    params.delete("name");
    for (const name of names.slice(0, this.page.server.limits.names)) params.append("name", name);
    this.page.router.go({ params });
  }

  private matching(): MetricRow[] {
    const words = (this.page.router.place.params.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    return (this.metrics ?? []).filter((metric) => words.every((word) => metric.name.toLowerCase().includes(word)));
  }

  private draw(): void {
    if (!this.metrics) return;
    show(this.ways, this.metrics.length > 0);
    if (!this.metrics.length) {
      fill(this.list, empty("Nothing to export yet", "The run has no metrics."));
      return;
    }
    const [chosen, found] = [this.chosen(), this.matching()];
    const key = JSON.stringify([
      chosen,
      found.map((metric) => [metric.name, metric.count]),
      this.page.router.place.params.get("zoom"),
    ]);
    if (key === this.drawn) return;
    const before = this.drawn;
    this.drawn = key;
    const points = this.metrics
      .filter((metric) => !chosen.length || chosen.includes(metric.name))
      .reduce((sum, metric) => sum + metric.count, 0);
    setText(
      this.status,
      chosen.length
        ? `${chosen.length} of ${this.metrics.length} metrics, ${value(points, "points")}`
        : `all ${this.metrics.length} metrics, ${value(points, "points")}; select some to export only those`,
    );
    const scrolled = this.list.scrollTop;
    fill(
      this.list,
      found.slice(0, MOST_SHOWN).map((metric) => this.line(metric, chosen)),
      found.length > MOST_SHOWN
        ? h("li", { class: "soft" }, `and ${found.length - MOST_SHOWN} more: search for them`)
        : null,
      found.length ? null : h("li", { class: "soft" }, "No matching metric."),
    );
    this.list.scrollTop = scrolled;
    this.drawFiles(chosen);
    const names = chosen.length ? chosen : this.metrics.slice(0, 1).map((metric) => metric.name);
    if (!before?.startsWith(JSON.stringify([chosen]).slice(0, -1))) this.drawPictures(names);
    void this.drawRecipe(names);
  }

  private line(metric: MetricRow, chosen: string[]): HTMLElement {
    const on = chosen.includes(metric.name);
    const box = h("input", {
      attrs: { type: "checkbox", checked: on },
      on: { change: () => this.choose(on ? chosen.filter((name) => name !== metric.name) : [...chosen, metric.name]) },
    });
    return h(
      "li",
      {},
      h(
        "label",
        { title: metric.help || metric.name },
        box,
        h("span", { class: "export-name" }, metric.name),
        h("span", { class: "soft num" }, short(metric.count, "points")),
      ),
    );
  }

  private drawFiles(chosen: string[]): void {
    fill(
      this.files,
      FORMATS.map(([format, label, text]) => {
        const query = new URLSearchParams({ run: this.run.key, format });
        for (const name of chosen) query.append("name", name);
        return h(
          "a",
          { class: "export-file", attrs: { href: `/api/export?${query}`, download: "", "data-format": format } },
          h("strong", {}, label),
          h("span", { class: "soft" }, text),
        );
      }),
    );
  }

  private async drawRecipe(names: string[]): Promise<void> {
    this.turn += 1;
    const turn = this.turn;
    const zoom = zoomOf(this.page.router.place.params);
    const range = zoom ? { from: zoom.range[0], to: zoom.range[1], axis: zoom.unit } : {};
    if (!this.recipe.childElementCount) fill(this.recipe, skeleton(4));
    try {
      const recipe = await json("/api/recipe", { run: this.run.key, name: names, ...range });
      if (turn !== this.turn) return;
      fill(
        this.recipe,
        RECIPES.filter(([key]) => recipe[key]).map(([key, label]) => this.code(label, recipe[key])),
      );
    } catch (error) {
      if (turn === this.turn)
        fill(
          this.recipe,
          failure(reason(error), () => void this.drawRecipe(names)),
        );
    }
  }

  private code(label: string, text: string): HTMLElement {
    const button = h(
      "button",
      { class: "button", attrs: { type: "button" }, on: { click: () => void this.copy(text, label) } },
      "Copy",
    );
    return h(
      "div",
      { class: "export-code" },
      h("header", {}, h("h3", {}, label), button),
      h("pre", {}, h("code", {}, text)),
    );
  }

  private async copy(text: string, label: string): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      this.page.announce(`${label} code copied`);
    } catch {
      this.page.announce("the browser does not allow copying: select the text instead");
    }
  }

  private drawPictures(names: string[]): void {
    for (const panel of this.panels) panel.stop();
    const facts = new Map((this.metrics ?? []).map((metric) => [metric.name, metric]));
    this.panels = names.slice(0, MOST_PICTURES).map(
      (name) =>
        new Panel(this.run, {
          title: name,
          names: [name],
          unit: facts.get(name)?.unit ?? "",
          help: facts.get(name)?.help ?? "",
        }),
    );
    // machine metrics have no step
    const axis = names.some((name) => facts.get(name)?.source === "machine") ? "time" : "step";
    for (const panel of this.panels) panel.setOptions({ axis });
    fill(
      this.pictures,
      this.panels.map((panel, place) =>
        h(
          "div",
          { class: "export-picture" },
          panel.element,
          h(
            "button",
            {
              class: "button",
              attrs: { type: "button" },
              on: { click: () => void panel.png().then((blob) => save(blob, `${fileName(names[place] ?? "")}.png`)) },
            },
            "Save as PNG",
          ),
        ),
      ),
    );
  }
}

const view: View = {
  name: "export",
  title: "Export",
  of: "run",
  mount(root: HTMLElement, page: Page): Mounted {
    return page.run ? new ExportView(root, page, page.run) : {};
  },
};

export { view as exporting };
