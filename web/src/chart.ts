/** A plot: uPlot draws axes, cursor and selection, `strokes.ts` draws lines. Independent of metrics and servers. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { linearTicks, logTicks, multiples, sharer } from "./axis.ts";
import { h, show } from "./dom.ts";
import { duration, moment, ticks } from "./format.ts";
import { type Drawn, type Frame, type Limit, type MarkLine, paint } from "./strokes.ts";
import { colour } from "./theme.ts";

export type Axis = "step" | "time" | "wall";

export interface Model {
  x: readonly [number, number];
  y: readonly [number, number];
  drawn: Drawn[];
  marks: MarkLine[];
  limits: Limit[];
}

export interface Form {
  axis: Axis;
  log: boolean;
  unit: string;
  /** Unix time of 0 on the axis "time". */
  origin: number;
  width: number;
  height: number;
}

export interface Handlers {
  /** The pointer is over x, or has left (null); `left` and `top` are CSS pixels of the page. */
  hover(x: number | null, left: number, top: number): void;
  /** A range was selected with the pointer. */
  select(from: number, to: number): void;
  /** A double click: reset the zoom. */
  reset(): void;
  drawn(): void;
}

const SPANS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000,
  2592000,
];
const FINE = [1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5];
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
export const LEFT = 58;
/** CSS pixels between two ticks of the value axis, and above and below it. */
const [SPACE, AROUND] = [28, 34];

/** One uPlot instance; it is made again when axis, scale or colors change. */
export class Chart {
  readonly plot: uPlot;
  private model: Model;
  /** Whether the pointer is over this chart; other charts show its position with a line. */
  private pointed = false;
  private readonly other = h("div", { class: "cursor" });

  constructor(
    host: HTMLElement,
    readonly form: Form,
    model: Model,
    private readonly handlers: Handlers,
  ) {
    this.model = model;
    this.plot = new uPlot(this.options(), this.edges(), host);
    show(this.other, false);
    this.plot.over.append(this.other);
    this.plot.over.addEventListener("mouseenter", () => (this.pointed = true));
    this.plot.over.addEventListener("mouseleave", () => {
      this.pointed = false;
      handlers.hover(null, 0, 0);
    });
  }

  /** Draw another model. */
  show(model: Model): void {
    const before = this.model;
    this.model = model;
    const { plot } = this;
    const x = plot.scales.x;
    const still =
      x?.min === model.x[0] && x?.max === model.x[1] && before.y[0] === model.y[0] && before.y[1] === model.y[1];
    if (still) plot.redraw(false, false);
    else plot.setData(this.edges(), true);
  }

  resize(width: number): void {
    if (Math.abs(width - this.plot.width) > 0.5) this.plot.setSize({ width, height: this.form.height });
  }

  /** Show a line at x while the pointer is over another chart; null hides it. */
  point(x: number | null): void {
    const left = x === null || this.pointed ? -1 : this.plot.valToPos(x, "x");
    const inside = left >= 0 && left <= this.plot.over.clientWidth;
    show(this.other, inside);
    if (inside) this.other.style.transform = `translateX(${left.toFixed(1)}px)`;
  }

  destroy(): void {
    this.plot.destroy();
  }

  private edges(): uPlot.AlignedData {
    return [
      [this.model.x[0], this.model.x[1]],
      [null, null],
    ];
  }

  private options(): uPlot.Options {
    const { form } = this;
    const line = { stroke: (): string => colour("grid"), width: 1 };
    const text = (): string => colour("soft");
    return {
      width: form.width,
      height: form.height,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: {
        x: true,
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        bind: {
          dblclick: () => () => {
            this.handlers.reset();
            return null;
          },
        },
      },
      scales: {
        x: { time: form.axis === "wall", range: () => [this.model.x[0], this.model.x[1]] },
        // a share of the height: we compute the ticks ourselves because uPlot loops forever on some axes
        y: { range: () => [0, 1] },
      },
      axes: [
        { stroke: text, grid: line, ticks: { show: false }, font: FONT, size: 26, gap: 7, space: 62, ...this.across() },
        {
          stroke: text,
          grid: line,
          ticks: { show: false },
          font: FONT,
          size: LEFT,
          gap: 4,
          splits: () => this.upward().map(sharer(this.model.y, form.log)),
          values: () => ticks(this.upward(), form.unit, form.log),
        },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(plot) => this.paint(plot)],
        setCursor: [(plot) => this.hovered(plot)],
        setSelect: [(plot) => this.selected(plot)],
      },
    };
  }

  /** Values with a tick on the value axis. */
  private upward(): number[] {
    const { height, log, unit } = this.form;
    const most = Math.max(2, Math.floor((height - AROUND) / SPACE));
    return log
      ? logTicks(this.model.y, most, unit.startsWith("bytes"))
      : linearTicks(this.model.y, most, unit.startsWith("bytes"));
  }

  private across(): Partial<uPlot.Axis> {
    const { axis, origin } = this.form;
    if (axis === "wall") {
      return {
        incrs: [...FINE, ...SPANS],
        splits: (_, __, low, high, increment) => multiples([low, high], increment, zone(low)),
        values: (_, splits, __, ___, increment) => splits.map((at) => wall(at, increment)),
      };
    }
    if (axis === "step") {
      return {
        incrs: WHOLE,
        space: 46,
        splits: (_, __, low, high, increment) => multiples([low, high], increment),
        values: (_, splits) => ticks(splits.map((at) => at ?? 0)),
      };
    }
    return {
      incrs: [...FINE, ...SPANS],
      splits: (_, __, low, high, increment) => multiples([low, high], increment, origin),
      values: (_, splits, __, ___, increment) => splits.map((at) => since(at - origin, increment)),
    };
  }

  private frame(plot: uPlot): Frame {
    const { left, top, width, height } = plot.bbox;
    return { left, top, width, height, x: this.model.x, y: this.model.y, log: this.form.log, ratio: uPlot.pxRatio };
  }

  private paint(plot: uPlot): void {
    paint(plot.ctx, this.frame(plot), this.model.drawn, this.model.marks, this.model.limits);
    this.handlers.drawn();
  }

  private hovered(plot: uPlot): void {
    const { left, top } = plot.cursor;
    if (!this.pointed || left === undefined || top === undefined || left < 0) return;
    const rect = plot.over.getBoundingClientRect();
    this.handlers.hover(plot.posToVal(left, "x"), rect.left + left, rect.top + top);
  }

  private selected(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.handlers.select(from, to);
  }
}

const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

/** Return a midnight in the reader's time zone as Unix seconds. */
function zone(at: number): number {
  return new Date(at * 1000).getTimezoneOffset() * 60 || 0;
}

function wall(at: number, increment: number): string {
  const text = moment(at, at);
  // the first tick of a day shows the date
  if (increment >= 86400 || text === "00:00:00")
    return new Date(at * 1000).toLocaleDateString(undefined, { month: "short", day: "numeric" });
  if (increment < 1) return text + (((at % 1) + 1) % 1).toFixed(3).slice(1);
  return increment >= 60 ? text.slice(0, 5) : text;
}

function since(seconds: number, increment: number): string {
  if (Math.abs(seconds) < 1e-9) return "0";
  if (increment < 1) return `${seconds.toFixed(Math.max(0, Math.ceil(-Math.log10(increment))))}\u202fs`;
  if (increment >= 3600 && Math.abs(seconds) < 86400) return `${Math.round(seconds / 3600)}\u202fh`;
  if (increment >= 60 && Math.abs(seconds) < 3600) return `${Math.round(seconds / 60)}\u202fmin`;
  return duration(seconds);
}
