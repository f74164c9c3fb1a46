/** Utilization of many CPUs over time as one picture: one row per CPU, brighter is busier. Linked with the charts. */

import { type Axis, LEFT } from "../chart.ts";
import { nearest } from "../chart_line.ts";
import { h, setText } from "../dom.ts";
import { moment, value } from "../format.ts";
import type { RunModel } from "../run.ts";
import { isDark, onTheme } from "../theme.ts";
import { hideTip, showTip } from "../tooltip.ts";
import { nextFrame, watchSight, watchSize } from "../viewport.ts";
import { shade } from "./colour_scale.ts";

const ROW = 9;
const POINTS = 400;
/** Return the number of a CPU from the name of its metric. */
function number(name: string): number {
  return Number(name.split("/")[1] ?? 0);
}

interface Row {
  x: Float64Array;
  time: Float64Array;
  value: Float64Array;
}

export class Heatmap {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { attrs: { role: "img" } });
  private readonly mark = h("i", { class: "heat-mark" });
  private readonly read = h("span", { class: "chart-read num" });
  private readonly plot: HTMLElement;
  private readonly names: string[];
  private axis: Axis = "time";
  private rows: Row[] = [];
  private width = 0;
  private inView = false;
  private draws = 0;
  private unwatch: (() => void)[] = [];
  private readonly stops: (() => void)[];
  private readonly redraw = (): void => this.draw();

  constructor(
    private readonly run: RunModel,
    title: string,
    names: string[],
  ) {
    this.names = [...names].sort((one, other) => number(one) - number(other));
    this.canvas.setAttribute("aria-label", `${title}, ${names.length} CPUs over time`);
    const ends = (share: number): string => `rgb(${shade(share).join(",")})`;
    const scale = h(
      "span",
      { class: "heat-scale soft" },
      "idle",
      h("i", { style: { background: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(ends).join(",")})` } }),
      "busy",
    );
    this.plot = h(
      "div",
      {
        class: "heat-plot",
        style: { height: `${names.length * ROW}px`, "margin-left": `${LEFT}px` },
        on: {
          mousemove: (event) => this.hover(event),
          mouseleave: () => this.leave(),
          dblclick: () => run.link.setRange(null),
        },
      },
      this.canvas,
      this.mark,
    );
    this.element = h(
      "section",
      { class: "chart heat", attrs: { "data-chart": title, "data-state": "loading", "data-drawn": 0 } },
      h("header", { class: "chart-head" }, h("h3", { class: "chart-title" }, title), scale, this.read),
      this.plot,
    );
    this.stops = [
      watchSight(this.element, (on) => (on ? this.enter() : this.exit())),
      watchSize(this.plot, (width) => {
        this.width = width;
        this.plan();
      }),
      onTheme(() => this.plan()),
      run.link.onCursor((x) => this.point(x)),
      run.link.onRange(() => this.plan()),
    ];
  }

  setAxis(axis: Axis): void {
    this.axis = axis;
    this.plan();
  }

  stop(): void {
    this.exit();
    for (const stop of this.stops) stop();
  }

  private enter(): void {
    if (this.inView) return;
    this.inView = true;
    this.unwatch = this.names.map((name) => this.run.curves.watch(name, POINTS, () => this.plan()));
    this.plan();
  }

  private exit(): void {
    this.inView = false;
    for (const stop of this.unwatch) stop();
    this.unwatch = [];
  }

  private plan(): void {
    if (this.inView && this.width > 0) nextFrame(this.redraw);
  }

  private collect(): Row[] {
    const clock = this.axis === "step" ? this.run.curves.clock() : null;
    return this.names.map((name) => {
      const curve = this.run.curves.get(name);
      const held = (curve?.zoomed?.length ? curve.zoomed : curve?.whole)?.at(-1);
      const { time, mean } = held?.columns() ?? { time: new Float64Array(0), mean: new Float64Array(0) };
      const x = clock ? time.map((at) => clock.stepAt(at) ?? NaN) : time;
      return { x, time, value: mean };
    });
  }

  private draw(): void {
    if (!this.inView || this.width <= 0) return;
    this.rows = this.collect();
    for (const row of this.rows)
      if (this.axis !== "step") this.run.link.cover(row.x[0] ?? NaN, row.x[row.x.length - 1] ?? NaN);
    const view = this.run.link.view();
    const some = this.rows.some((row) => row.x.length);
    if (!view || !some) return;
    const [columns, lines] = [Math.max(1, Math.min(POINTS * 2, Math.round(this.width))), this.rows.length];
    const image = new ImageData(columns, lines);
    const ground = isDark() ? [32, 36, 44] : [232, 234, 238];
    this.rows.forEach((row, line) => {
      for (let column = 0; column < columns; column += 1) {
        const x = view[0] + ((column + 0.5) / columns) * (view[1] - view[0]);
        const [first, last] = [row.x[0] ?? Infinity, row.x[row.x.length - 1] ?? -Infinity];
        const inside = x >= first && x <= last;
        const [red, green, blue] = inside ? shade(row.value[nearest(row.x, x)] ?? NaN) : ground;
        image.data.set([red ?? 0, green ?? 0, blue ?? 0, 255], (line * columns + column) * 4);
      }
    });
    [this.canvas.width, this.canvas.height] = [columns, lines];
    this.canvas.style.setProperty("height", `${lines * ROW}px`);
    this.canvas.getContext("2d")?.putImageData(image, 0, 0);
    this.element.setAttribute("data-state", "drawn");
    this.element.setAttribute("data-drawn", String(++this.draws));
    this.point(this.run.link.cursor);
  }

  private point(x: number | null): void {
    const view = this.run.link.view();
    const share = x === null || !view ? -1 : (x - view[0]) / (view[1] - view[0] || 1);
    this.mark.hidden = share < 0 || share > 1;
    this.mark.style.setProperty("left", `${share * 100}%`);
    const now = this.rows
      .map((row) => row.value[x === null ? row.value.length - 1 : nearest(row.x, x)] ?? NaN)
      .filter(Number.isFinite);
    setText(this.read, now.length ? value(now.reduce((sum, one) => sum + one, 0) / now.length, "ratio") : "");
  }

  private hover(event: MouseEvent): void {
    const view = this.run.link.view();
    if (!view) return;
    const box = this.plot.getBoundingClientRect();
    const x = view[0] + ((event.clientX - box.left) / (box.width || 1)) * (view[1] - view[0]);
    const place = Math.max(0, Math.min(this.rows.length - 1, Math.floor((event.clientY - box.top) / ROW)));
    const row = this.rows[place];
    this.run.link.setCursor(x);
    if (!row?.x.length) return;
    const at = nearest(row.x, x);
    const share = row.value[at] ?? NaN;
    const colour = `rgb(${shade(share).join(",")})`;
    showTip(
      event.clientX,
      event.clientY,
      moment(row.time[at] ?? null),
      [{ colour, label: `processor ${this.names[place]?.split("/")[1] ?? place}`, text: value(share, "ratio") }],
      [],
    );
  }

  private leave(): void {
    hideTip();
    this.run.link.setCursor(null);
  }
}
