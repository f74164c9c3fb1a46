/** A chart of metrics: fetches the visible range, follows live rows, cursor and zoom, and notes what it leaves out. */

import { padded, paddedLog } from "./axis.ts";
import { type Axis, Chart, type Model } from "./chart.ts";
import { type Extent, extent, type Line, nearest, smooth, valueAt } from "./chart_line.ts";
import type { ChartLink } from "./chart_link.ts";
import type { CurveBuffer } from "./curve_buffer.ts";
import { acrossOf, metricLines } from "./curve_lines.ts";
import type { Curve, Curves } from "./curves.ts";
import { fill, h, setText, show } from "./dom.ts";
import { count, duration, moment, value } from "./format.ts";
import type { Live } from "./live.ts";
import { Readings } from "./readings.ts";
import type { Drawn, Limit, MarkLine } from "./strokes.ts";
import { colour, lineColour, onTheme } from "./theme.ts";
import { hideTip, showTip, type TipRow } from "./tooltip.ts";
import { nextFrame, watchSight, watchSize } from "./viewport.ts";

export interface Source {
  curves: Curves;
  link: ChartLink;
  live?: Live | null;
}

export interface Marker {
  step?: number | null;
  time?: number | null;
  text: string;
  kind: MarkLine["kind"];
}

export interface Spec {
  title: string;
  names: string[];
  unit?: string;
  help?: string;
  height?: number;
  label?: (held: CurveBuffer) => string;
  order?: (held: CurveBuffer) => number;
  limits?: Limit[];
  markers?: Marker[];
  bare?: boolean;
  /** The title shows the values of all lines, not only of the first; "named" adds their names. */
  every?: "named" | "plain";
  /** The axis starts at 0. */
  zero?: boolean;
  /** The axis ends at this value or above. */
  most?: number;
  /** Controls on the right of the title. */
  extra?: HTMLElement[];
  /** The title is a button that calls this. */
  enlarge?: () => void;
}

export interface ChartOptions {
  axis: Axis;
  log: boolean;
  /** Points to smooth over; 0 for none. */
  smooth: number;
  clip: boolean;
  ranks: "band" | "each";
}

type State = "loading" | "drawn" | "empty" | "error";

const HEIGHT = 176;
const PIXELS_PER_POINT = 1.5;
/** Smallest height of an axis of bytes, relative to its values. */
const STEADY = 0.02;

/** One chart as `Spec` describes it; `element` goes into the page. */
export class Panel {
  readonly element: HTMLElement;
  private current: ChartOptions = { axis: "step", log: false, smooth: 0, clip: false, ranks: "band" };
  private readonly plot: HTMLElement;
  private readonly read: HTMLElement;
  private readonly readings: Readings | null;
  private readonly notes: HTMLElement;
  private readonly cover: HTMLElement;
  private chart: Chart | null = null;
  private lines: Line[] = [];
  private model: Model | null = null;
  private inView = false;
  private width = 0;
  private draws = 0;
  private hovered = false;
  private unwatch: (() => void)[] = [];
  private stops: (() => void)[] = [];
  private markers: Marker[];
  private readonly redraw = (): void => this.draw();

  constructor(
    private readonly source: Source,
    private readonly spec: Spec,
  ) {
    this.markers = spec.markers ?? [];
    this.read = h("span", { class: "chart-read num" });
    this.notes = h("span", { class: "chart-notes" });
    this.cover = h("div", { class: "chart-cover" });
    this.plot = h(
      "div",
      {
        class: "chart-plot",
        attrs: { tabindex: 0, role: "img", "aria-label": `Chart of ${spec.title}` },
        on: { keydown: (event) => this.pressed(event), blur: () => this.leave() },
        style: { height: `${this.height()}px` },
      },
      this.cover,
    );
    this.readings = spec.every ? new Readings(spec.every === "named") : null;
    this.element = h(
      "section",
      { class: "chart", attrs: { "data-chart": spec.title, "data-state": "loading", "data-drawn": 0 } },
      h(
        "header",
        { class: "chart-head" },
        this.title(),
        this.notes,
        ...(spec.extra ?? []),
        this.readings ? null : this.read,
      ),
      this.readings?.element ?? null,
      this.plot,
    );
    this.setState("loading", "");
    this.stops.push(
      watchSight(this.element, (inView) => (inView ? this.enter() : this.exit())),
      watchSize(this.plot, (width) => this.resized(width)),
      onTheme(() => this.rebuild()),
      source.link.onCursor((x) => this.follow(x)),
      source.link.onRange(() => this.zoomed()),
    );
  }

  /** Change some options; the others stay. */
  setOptions(change: Partial<ChartOptions>): void {
    const before = this.current;
    this.current = { ...before, ...change };
    this.source.link.setUnit(this.current.axis === "step" ? "step" : "time");
    if (JSON.stringify(before) === JSON.stringify(this.current)) return;
    if (before.axis !== this.current.axis || before.log !== this.current.log) this.rebuild();
    else this.plan();
  }

  setMarkers(markers: Marker[]): void {
    this.markers = markers;
    this.plan();
  }

  setLimits(limits: Limit[]): void {
    this.spec.limits = limits;
    this.plan();
  }

  setHeight(height: number): void {
    this.spec.height = height;
    this.plot.style.height = `${height}px`;
    this.rebuild();
  }

  /** Return the chart as a picture, with its title. */
  async png(): Promise<Blob> {
    const from = this.plot.querySelector("canvas");
    if (!from) throw new Error("cannot save the picture: the chart is off screen; scroll to it");
    const ratio = devicePixelRatio;
    const to = document.createElement("canvas");
    const head = Math.round(30 * ratio);
    [to.width, to.height] = [from.width, from.height + head];
    const context = to.getContext("2d");
    if (!context) throw new Error("cannot save the picture: the browser has no canvas; try another browser");
    context.fillStyle = colour("surface");
    context.fillRect(0, 0, to.width, to.height);
    context.fillStyle = colour("text");
    context.font = `600 ${13 * ratio}px system-ui, sans-serif`;
    context.fillText(this.spec.title, 12 * ratio, 20 * ratio);
    context.drawImage(from, 0, head);
    return new Promise((done, failed) =>
      to.toBlob(
        (blob) =>
          blob ? done(blob) : failed(new Error("cannot save the picture: it is too large; make the window smaller")),
        "image/png",
      ),
    );
  }

  stop(): void {
    this.exit();
    for (const stop of this.stops) stop();
  }

  private title(): HTMLElement {
    const { title, help, enlarge } = this.spec;
    const cut = title.lastIndexOf("/");
    const words = cut > 0 ? [h("span", { class: "soft" }, title.slice(0, cut + 1)), title.slice(cut + 1)] : [title];
    const hint = help ? `${title}: ${help}` : title;
    return enlarge
      ? h(
          "h3",
          {},
          h(
            "button",
            { class: "chart-title", title: hint, attrs: { type: "button" }, on: { click: enlarge } },
            ...words,
          ),
        )
      : h("h3", { class: "chart-title", title: hint }, ...words);
  }

  private height(): number {
    return this.spec.height ?? HEIGHT;
  }

  private enter(): void {
    if (this.inView) return;
    this.inView = true;
    const points = Math.min(2000, Math.max(200, Math.round((this.width || 600) / PIXELS_PER_POINT)));
    this.unwatch = this.spec.names.map((name) => this.source.curves.watch(name, points, () => this.plan()));
    this.plan();
  }

  private exit(): void {
    if (!this.inView) return;
    this.inView = false;
    for (const stop of this.unwatch) stop();
    this.unwatch = [];
    if (this.hovered) this.leave();
    this.drop();
  }

  private drop(): void {
    this.chart?.destroy();
    this.chart = null;
    Object.assign(this.element, { chart: undefined, reach: undefined, lines: undefined });
  }

  private rebuild(): void {
    this.drop();
    this.plan();
  }

  private resized(width: number): void {
    this.width = width;
    if (this.chart) this.chart.resize(width);
    else this.plan();
  }

  private zoomed(): void {
    const view = this.source.link.view();
    // other charts have only caught up with this one
    if (!view || !this.model || this.model.x[0] !== view[0] || this.model.x[1] !== view[1]) this.plan();
  }

  private plan(): void {
    if (this.inView && this.width > 0) nextFrame(this.redraw);
  }

  private draw(): void {
    if (!this.inView || this.width <= 0) return;
    const curves = this.spec.names
      .map((name) => this.source.curves.get(name))
      .filter((one): one is Curve => one !== null);
    this.lines = this.collect(curves);
    for (const line of this.lines) this.source.link.cover(line.x[0] ?? NaN, line.x[line.x.length - 1] ?? NaN);
    const view = this.source.link.view();
    if (!this.lines.length || !view) {
      this.absent(curves);
      return;
    }
    const shown = extent(this.lines, view[0], view[1], this.current.clip, this.current.log);
    this.explain(shown);
    if (!shown) {
      const nothing = this.current.log ? "no values above 0 here (log axis)" : "no points in this range";
      this.setState("empty", this.lines.some((line) => line.badCount) ? "only NaN or infinite values here" : nothing);
      return;
    }
    this.model = {
      x: wide(view),
      y: this.limits(shown),
      drawn: this.lines.map((line) => this.smoothed(line)),
      marks: this.marks(),
      limits: this.spec.limits ?? [],
    };
    this.setState("drawn", "");
    if (this.chart) this.chart.show(this.model);
    else this.build(this.model);
    Object.assign(this.element, { chart: this.chart?.plot, reach: this.model.y, lines: this.lines });
    this.follow(this.source.link.cursor);
  }

  private build(model: Model): void {
    const form = {
      axis: this.current.axis,
      log: this.current.log,
      unit: this.spec.unit ?? "",
      origin: this.origin(),
      width: this.width,
      height: this.height(),
    };
    this.chart = new Chart(this.plot, form, model, {
      hover: (x, left, top) => this.hover(x, left, top),
      select: (from, to) => this.source.link.setRange([from, to]),
      reset: () => this.source.link.setRange(null),
      drawn: () => this.element.setAttribute("data-drawn", String(++this.draws)),
    });
  }

  private collect(curves: Curve[]): Line[] {
    const across = acrossOf(this.source.curves, this.current.axis);
    const many = this.spec.names.length > 1 || this.source.curves.runs.length > 1;
    const label =
      this.spec.label ??
      ((held: CurveBuffer) =>
        this.spec.names.length > 1 ? held.name : held.rank >= 0 ? `rank ${held.rank}` : "all ranks");
    const order =
      this.spec.order ??
      ((held: CurveBuffer) => (many ? Math.max(0, this.spec.names.indexOf(held.name)) : Math.max(0, held.rank)));
    const band = this.current.ranks === "band" && !many;
    const zoomed = this.source.link.range !== null;
    return curves.flatMap((curve) =>
      metricLines(curve, zoomed, across, { label, order, bare: this.spec.bare ?? false }, band),
    );
  }

  private smoothed(line: Line): Drawn {
    return { line, smoothed: this.current.smooth > 1 ? smooth(line, this.current.smooth) : null };
  }

  private origin(): number {
    if (this.source.curves.starts) return 0;
    return this.source.curves.origin ?? this.source.link.whole?.[0] ?? 0;
  }

  private limits(shown: Extent): [number, number] {
    if (this.current.log) return paddedLog(shown.min, shown.max);
    const limits = (this.spec.limits ?? [])
      .map((limit) => limit.value)
      .filter((at) => at <= shown.max * 4 && at >= shown.min / 4);
    const [least, most] = [Math.min(shown.min, ...limits), Math.max(shown.max, ...limits)];
    const [low, high] = padded(this.spec.zero ? Math.min(0, least) : least, most);
    // a change of a few bytes should look small
    const steady = this.spec.unit === "bytes" ? Math.max(0, (Math.abs(most) * STEADY - (high - low)) / 2) : 0;
    return [
      Math.max(low - steady, low >= 0 ? 0 : -Infinity),
      this.spec.most !== undefined && high <= this.spec.most * 1.1 ? this.spec.most * 1.03 : high + steady,
    ];
  }

  private marks(): MarkLine[] {
    if (!this.markers.length) return [];
    const clock = this.source.curves.clock();
    const steps = this.current.axis === "step";
    return this.markers.flatMap((mark) => {
      const own = steps ? mark.step : mark.time;
      const other = steps ? mark.time : mark.step;
      const x =
        own ?? (other === null || other === undefined ? null : steps ? clock?.stepAt(other) : clock?.timeAt(other));
      return x === null || x === undefined ? [] : [{ x, text: mark.text, kind: mark.kind }];
    });
  }

  private absent(curves: Curve[]): void {
    const failed = curves.find((curve) => curve.state === "error");
    if (failed) this.setState("error", failed.text);
    else if (!curves.length || curves.some((curve) => curve.state === "loading")) this.setState("loading", "");
    else
      this.setState(
        "empty",
        curves.some((curve) => curve.whole.length) && this.current.axis === "step"
          ? "has no steps: select time as the axis"
          : "no points yet",
      );
  }

  private setState(state: State, text: string): void {
    this.element.setAttribute("data-state", state);
    show(this.cover, state !== "drawn");
    if (state === "drawn") return;
    this.drop();
    if (state === "error")
      fill(
        this.cover,
        h("span", {}, text),
        h(
          "button",
          { class: "button", attrs: { type: "button" }, on: { click: () => this.source.curves.refresh() } },
          "Try again",
        ),
      );
    else if (this.cover.textContent !== text || state === "loading") fill(this.cover, text);
  }

  /** Note what the chart does not show. */
  private explain(shown: Extent | null): void {
    const { unit } = this.spec;
    const notes: string[] = [];
    const bad = this.lines.reduce((sum, line) => sum + (line.badCount ?? 0), 0);
    if (bad) notes.push(`${count(bad)} NaN or infinite`);
    if (shown?.above) notes.push(`${shown.above} above, to ${value(shown.most, unit)}`);
    if (shown?.below) notes.push(`${shown.below} below, to ${value(shown.least, unit)}`);
    if (shown && this.current.log && this.lines.some((line) => line.min.some((low) => low <= 0)))
      notes.push("≤ 0 not shown");
    const late = this.spec.names.map((name) => this.source.curves.get(name)?.text ?? "").find(Boolean);
    if (late) notes.push(`out of date: ${late}`);
    const text = notes.join(" · ");
    setText(this.notes, text);
    this.notes.title = shown?.above || shown?.below ? `Outliers are clipped: ${text}` : text;
  }

  private follow(x: number | null): void {
    if (!this.inView || !this.chart) return;
    this.chart.point(x);
    const end = this.source.link.range?.[1] ?? Infinity;
    if (this.readings) {
      this.readings.show(this.lines, x, end, this.spec.unit ?? "");
      return;
    }
    const main = this.main();
    setText(this.read, main ? value(valueAt(main, x, end), this.spec.unit) : "");
  }

  /** Return the line whose value the title shows: the band of the ranks, else the first line. */
  private main(): Line | undefined {
    return (
      this.lines.find((line) => line.key.startsWith("ranks") && !line.faint) ??
      this.lines.find((line) => !line.faint) ??
      this.lines[0]
    );
  }

  private hover(x: number | null, left: number, top: number): void {
    if (x === null) {
      this.leave();
      return;
    }
    this.hovered = true;
    this.source.link.setCursor(x);
    const rows = this.lines
      .filter((line) => inside(line, x))
      .map((line) => this.row(line, x))
      .sort((one, other) => other.at - one.at);
    const reach = this.model ? ((this.model.x[1] - this.model.x[0]) / this.width) * 5 : 0;
    const marks = this.marks()
      .filter((mark) => Math.abs(mark.x - x) <= reach)
      .map((mark) => mark.text);
    showTip(left, top, this.where(x), rows, marks.slice(0, 4));
  }

  private row(line: Line, x: number): TipRow & { at: number } {
    const place = nearest(line.x, x);
    const at = line.mean[place] ?? NaN;
    const [low, high, many] = [line.min[place] ?? at, line.max[place] ?? at, line.count[place] ?? 1];
    const { unit } = this.spec;
    const note =
      high > low && !line.bare
        ? `${value(low, unit)} … ${value(high, unit)}${many > 1 ? `, ${count(many)} points` : ""}`
        : undefined;
    const ink = typeof line.colour === "number" ? lineColour(line.colour) : colour(line.colour);
    return {
      colour: ink,
      label: this.lines.length > 1 ? line.label : "",
      text: value(at, unit),
      note,
      at: Number.isFinite(at) ? at : -Infinity,
    };
  }

  private where(x: number): string {
    const clock = this.source.curves.clock();
    if (this.current.axis === "step") {
      const main = this.lines[0];
      const step = main ? (main.x[nearest(main.x, x)] ?? x) : x;
      const time = clock?.timeAt(step) ?? null;
      return `step ${count(Math.round(step))}${time === null ? "" : ` · ${moment(time)}`}`;
    }
    const step = clock?.stepAt(x) ?? null;
    const time = this.current.axis === "wall" ? moment(x) : duration(x - this.origin());
    return step === null ? time : `${time} · step ${count(Math.round(step))}`;
  }

  private leave(): void {
    this.hovered = false;
    hideTip();
    this.source.link.setCursor(null);
  }

  private pressed(event: KeyboardEvent): void {
    const { link } = this.source;
    const act: Record<string, () => void> = {
      ArrowLeft: () => (event.shiftKey ? link.scale(1, -0.2) : this.walk(-1)),
      ArrowRight: () => (event.shiftKey ? link.scale(1, 0.2) : this.walk(1)),
      "+": () => link.scale(0.5, 0),
      "=": () => link.scale(0.5, 0),
      "-": () => link.scale(2, 0),
      "0": () => link.setRange(null),
      Escape: () => this.plot.blur(),
    };
    const found = event.ctrlKey || event.metaKey || event.altKey ? undefined : act[event.key];
    if (!found) return;
    event.preventDefault();
    event.stopPropagation();
    found();
  }

  /** Move the cursor to the next point. */
  private walk(by: number): void {
    const line = this.main();
    if (!line?.x.length || !this.chart) return;
    const now = this.source.link.cursor;
    const place =
      now === null ? line.x.length - 1 : Math.min(line.x.length - 1, Math.max(0, nearest(line.x, now) + by));
    const x = line.x[place] ?? 0;
    const rect = this.chart.plot.over.getBoundingClientRect();
    this.hover(x, rect.left + this.chart.plot.valToPos(x, "x"), rect.top + rect.height / 2);
  }
}

function wide([from, to]: readonly [number, number]): [number, number] {
  return from === to ? [from - 0.5, to + 0.5] : [from, to];
}

function inside(line: Line, x: number): boolean {
  const [first, last] = [line.x[0] ?? 0, line.x[line.x.length - 1] ?? 0];
  const air = (last - first) * 0.02;
  return x >= first - air && x <= last + air;
}
