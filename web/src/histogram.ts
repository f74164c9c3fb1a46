/** Histograms over time as a picture: one column per histogram, darker for more values. */

import { type Histograms, json, reason } from "./api.ts";
import type { ChartLink } from "./chart_link.ts";
import { h, setText, show } from "./dom.ts";
import { count, moment, number } from "./format.ts";
import { colour, onTheme } from "./theme.ts";
import { hideTip, showTip } from "./tooltip.ts";
import { nextFrame, watchSight, watchSize } from "./viewport.ts";

const HEIGHT = 176;
const [LEFT, TOP, RIGHT, BOTTOM] = [58, 8, 10, 24];
type Rows = Histograms["rows"];

/** One named histogram of a run. */
export class HistogramPanel {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { class: "histogram" });
  private readonly cover = h("div", { class: "chart-cover" });
  private rows: Rows = [];
  private width = 0;
  private inView = false;
  private loaded = false;
  private stops: (() => void)[] = [];
  private readonly redraw = (): void => this.draw();

  constructor(
    private readonly run: string,
    private readonly name: string,
    private readonly link: ChartLink,
  ) {
    const plot = h(
      "div",
      {
        class: "chart-plot",
        style: { height: `${HEIGHT}px` },
        attrs: { role: "img", "aria-label": `Histogram of ${name}` },
        on: { mousemove: (event) => this.hover(event), mouseleave: () => hideTip() },
      },
      this.canvas,
      this.cover,
    );
    this.element = h(
      "section",
      { class: "chart", attrs: { "data-chart": name, "data-state": "loading" } },
      h(
        "header",
        { class: "chart-head" },
        h("h3", { class: "chart-title", title: name }, name),
        h("span", { class: "chart-notes" }),
        h("span", { class: "soft" }, "histogram"),
      ),
      plot,
    );
    this.stops.push(
      watchSight(this.element, (inView) => this.seen(inView)),
      watchSize(plot, (width) => {
        this.width = width;
        this.plan();
      }),
      onTheme(() => this.plan()),
      link.onRange(() => this.plan()),
    );
  }

  /** Load again because there are new histograms. */
  refresh(): void {
    this.loaded = false;
    if (this.inView) void this.load();
  }

  stop(): void {
    for (const stop of this.stops) stop();
  }

  private seen(inView: boolean): void {
    this.inView = inView;
    if (inView && !this.loaded) void this.load();
    this.plan();
  }

  private async load(): Promise<void> {
    this.loaded = true;
    try {
      this.rows = (await json("/api/histograms", { run: this.run, name: this.name })).rows.filter(
        (row) => row.edges.length === row.counts.length + 1 && row.counts.length > 0,
      );
      this.element.setAttribute("data-state", this.rows.length ? "drawn" : "empty");
      setText(this.cover, this.rows.length ? "" : "no histograms yet");
    } catch (error) {
      this.element.setAttribute("data-state", "error");
      setText(this.cover, reason(error));
    }
    show(this.cover, !this.rows.length);
    this.plan();
  }

  private plan(): void {
    if (this.inView && this.width > 0) nextFrame(this.redraw);
  }

  private x(row: Rows[number]): number {
    return (this.link.unit === "step" ? row.step : row.time) ?? 0;
  }

  private shown(): { rows: Rows; from: number; to: number; low: number; high: number } | null {
    const [from, to] = this.link.range ?? [
      this.x(this.rows[0] ?? EMPTY),
      this.x(this.rows[this.rows.length - 1] ?? EMPTY),
    ];
    const rows = this.rows.filter((row) => this.x(row) >= from && this.x(row) <= to);
    if (!rows.length) return null;
    const low = Math.min(...rows.map((row) => row.edges[0] ?? 0));
    const high = Math.max(...rows.map((row) => row.edges[row.edges.length - 1] ?? 0));
    return { rows, from, to, low, high };
  }

  private draw(): void {
    const ratio = devicePixelRatio;
    const { canvas } = this;
    [canvas.width, canvas.height] = [Math.round(this.width * ratio), Math.round(HEIGHT * ratio)];
    const context = canvas.getContext("2d");
    const shown = this.shown();
    if (!context || !shown) return;
    context.scale(ratio, ratio);
    const [wide, tall] = [this.width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];
    const y = (value: number): number => TOP + tall - ((value - shown.low) / (shown.high - shown.low || 1)) * tall;
    const column = wide / shown.rows.length;
    context.fillStyle = colour("line-0");
    shown.rows.forEach((row, place) => {
      const most = Math.max(...row.counts, 1);
      row.counts.forEach((many, bin) => {
        if (!many) return;
        const [bottom, top] = [y(row.edges[bin] ?? 0), y(row.edges[bin + 1] ?? 0)];
        context.globalAlpha = 0.08 + 0.92 * (many / most);
        context.fillRect(
          LEFT + place * column,
          top,
          Math.max(1, column - (column > 4 ? 1 : 0)),
          Math.max(1, bottom - top),
        );
      });
    });
    context.globalAlpha = 1;
    context.fillStyle = colour("soft");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const share of [0, 0.5, 1])
      context.fillText(
        number(shown.low + share * (shown.high - shown.low), 3),
        LEFT - 6,
        y(shown.low + share * (shown.high - shown.low)),
      );
    context.textBaseline = "top";
    const ends = [shown.rows[0] ?? EMPTY, shown.rows[shown.rows.length - 1] ?? EMPTY].map((row) => this.where(row));
    context.textAlign = "left";
    context.fillText(ends[0] ?? "", LEFT, HEIGHT - BOTTOM + 6);
    context.textAlign = "right";
    if (shown.rows.length > 1) context.fillText(ends[1] ?? "", LEFT + wide, HEIGHT - BOTTOM + 6);
  }

  /** Return the step of a histogram, or its time if it has no step. */
  private where(row: Rows[number]): string {
    const stepless = this.rows.length > 1 && this.rows.every((one) => one.step === this.rows[0]?.step);
    return stepless ? moment(row.time) : `step ${count(row.step)}`;
  }

  private hover(event: MouseEvent): void {
    const shown = this.shown();
    if (!shown) return;
    const rect = this.canvas.getBoundingClientRect();
    const place = Math.floor(((event.clientX - rect.left - LEFT) / (this.width - LEFT - RIGHT)) * shown.rows.length);
    const row = shown.rows[place];
    if (!row) {
      hideTip();
      return;
    }
    const value = shown.high - ((event.clientY - rect.top - TOP) / (HEIGHT - TOP - BOTTOM)) * (shown.high - shown.low);
    const bin = row.edges.findIndex((edge, at) => value >= edge && value < (row.edges[at + 1] ?? -Infinity));
    const total = row.counts.reduce((sum, many) => sum + many, 0);
    const text = bin < 0 ? "no values here" : `${count(row.counts[bin] ?? 0)} of ${count(total)}`;
    const label = bin < 0 ? "" : `${number(row.edges[bin], 3)} … ${number(row.edges[bin + 1], 3)}`;
    showTip(event.clientX, event.clientY, this.where(row), [{ colour: colour("line-0"), label, text }], []);
  }
}

const EMPTY: Rows[number] = { step: 0, time: 0, rank: 0, attempt: 0, edges: [], counts: [] };
