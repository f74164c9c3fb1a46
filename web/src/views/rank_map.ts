/** Ranks over steps as one picture: a row per rank, a column per bucket of steps. Drag to zoom, click to select. */

import type { RankHeat, ShownRank } from "../api.ts";
import { fill, h, setText, show } from "../dom.ts";
import { count, share, value } from "../format.ts";
import { isDark, onTheme } from "../theme.ts";
import { hideTip, showTip } from "../tooltip.ts";
import { nextFrame, watchSize } from "../viewport.ts";
import { lateShade, shade } from "./colour_scale.ts";
import type { RankGroup } from "./rank_order.ts";

/** Height of all rows together that a laptop's screen shows, of the tallest row, and of one that needs attention. */
const [TALL, TALLEST, NOTED] = [512, 56, 13];
/** Most rows that are drawn higher because they need attention. */
const MOST_NOTED = 16;
const LABEL = 13;
/** Least pixels between two labels where rows are too thin for one each, and those above the label of the others. */
const [APART, REST] = [24, 20];
const DRAGGED = 6;
/** A share of a step that is always within the scale, and the largest one. */
const [LEAST, MOST] = [0.1, 0.5];

export interface Cell {
  rank: number;
  /** The first step of its bucket. */
  step: number;
}

export interface MapEvents {
  select(cell: Cell): void;
  zoom(steps: readonly [number, number] | null): void;
}

interface GutterLabel {
  text: string;
  /** Pixels from the top to its middle. */
  at: number;
  bad: boolean;
  title: string;
}

type Scale = (value: number, bucket: number) => readonly number[];

export class RankMapChart {
  readonly element: HTMLElement;
  selected: Cell | null = null;
  private readonly canvas = h("canvas", { attrs: { role: "img" } });
  private readonly gutter = h("div", { class: "rank-gutter", attrs: { "aria-hidden": "true" } });
  private readonly box = h("i", { class: "rank-box" });
  private readonly band = h("i", { class: "rank-band" });
  private readonly plot: HTMLElement;
  private readonly axis = h("div", { class: "rank-axis soft num" });
  private readonly title = h("h3", { class: "chart-title" });
  private readonly legend = h("span", { class: "heat-scale soft num" });
  private map: RankHeat | null = null;
  private groups: RankGroup[] = [];
  private rows = new Map<number, ShownRank>();
  private order: number[] = [];
  private noted: ReadonlySet<number> = new Set();
  /** Top of each row in pixels, and the end of the last. */
  private tops: number[] = [0];
  private values = new Map<number, (number | null)[]>();
  private dragged: number | null = null;
  private width = 0;
  private draws = 0;
  private readonly stops: (() => void)[];
  private readonly redraw = (): void => this.draw();

  constructor(private readonly events: MapEvents) {
    this.plot = h(
      "div",
      {
        class: "rank-plot",
        attrs: {
          tabindex: 0,
          role: "application",
          "aria-label": "Map of ranks: arrows select a cell, + and - zoom, 0 shows everything",
        },
        on: {
          pointerdown: (event) => this.pressed(event),
          pointermove: (event) => this.moved(event),
          pointerup: (event) => this.released(event),
          pointerleave: () => this.left(),
          dblclick: () => events.zoom(null),
          keydown: (event) => this.key(event),
        },
      },
      this.canvas,
      this.band,
      this.box,
    );
    show(this.box, false);
    show(this.band, false);
    this.element = h(
      "section",
      { class: "chart rank-map", attrs: { "data-chart": "ranks", "data-state": "loading", "data-drawn": 0 } },
      h("header", { class: "chart-head" }, this.title, this.legend),
      h("div", { class: "rank-body" }, this.gutter, this.plot, h("span"), this.axis),
    );
    this.stops = [
      watchSize(this.plot, (width) => {
        this.width = width;
        nextFrame(this.redraw);
      }),
      onTheme(() => nextFrame(this.redraw)),
    ];
  }

  stop(): void {
    hideTip();
    for (const stop of this.stops) stop();
  }

  /** Show a map with its rows in groups; `noted` are the ranks that need attention. */
  set(map: RankHeat, groups: RankGroup[], rows: readonly ShownRank[], noted: ReadonlySet<number>, title: string): void {
    this.map = map;
    this.noted = noted;
    this.values = new Map(map.ranks.map((rank, at) => [rank, map.values[at] ?? []]));
    this.rows = new Map(rows.map((row) => [row.rank, row]));
    const known = (rank: number): boolean => this.values.has(rank);
    this.groups = groups
      .map((group) => ({ ...group, ranks: group.ranks.filter(known) }))
      .filter((group) => group.ranks.length);
    this.order = this.groups.flatMap((group) => group.ranks);
    this.tops = this.stacked();
    setText(this.title, title);
    this.canvas.setAttribute("aria-label", `${title} of ${this.order.length} ranks`);
    this.plot.style.setProperty("height", `${this.height}px`);
    this.drawGutter();
    nextFrame(this.redraw);
  }

  /** Mark a cell; null marks none. */
  mark(cell: Cell | null): void {
    this.selected = cell;
    this.placeBox();
  }

  private get columns(): number {
    return Math.max(0, (this.map?.edges.length ?? 1) - 1);
  }

  /** Return the tops of all rows: the few that are late or ended are high enough to be seen among hundreds. */
  private stacked(): number[] {
    const row = Math.max(1, Math.min(TALLEST, Math.floor(TALL / Math.max(1, this.order.length))));
    const high = this.noted.size <= MOST_NOTED ? Math.max(row, NOTED) : row;
    const tops = [0];
    for (const rank of this.order) tops.push((tops.at(-1) ?? 0) + (this.noted.has(rank) ? high : row));
    return tops;
  }

  private get height(): number {
    return Math.max(1, this.tops.at(-1) ?? 1);
  }

  private tall(line: number): number {
    return (this.tops[line + 1] ?? 0) - (this.tops[line] ?? 0);
  }

  /** Return the row at a distance from the top. */
  private lineAt(top: number): number {
    const line = this.tops.findIndex((end, at) => at > 0 && end > top) - 1;
    return line < 0 ? (top < 0 ? 0 : this.order.length - 1) : line;
  }

  private drawGutter(): void {
    const { labels, bars } = this.labels();
    const shown: GutterLabel[] = [];
    // Those that need attention come first; another label stays if there is room for it.
    for (const one of [...labels].sort((left, right) => Number(right.bad) - Number(left.bad)))
      if (shown.every((other) => Math.abs(other.at - one.at) >= LABEL)) shown.push(one);
    fill(
      this.gutter,
      bars,
      shown.map((one) =>
        h(
          "span",
          { class: one.bad ? "bad" : "", title: one.title, style: { top: `${one.at - LABEL / 2}px` } },
          one.text,
        ),
      ),
    );
  }

  /** Return the labels of the rows or groups, and a bar beside each group. */
  private labels(): { labels: GutterLabel[]; bars: HTMLElement[] } {
    const labels: GutterLabel[] = [];
    const bars: HTMLElement[] = [];
    let line = 0;
    this.groups.forEach((group, place) => {
      const top = this.tops[line] ?? 0;
      if (group.label) {
        const tall = (this.tops[line + group.ranks.length] ?? top) - top;
        const bad = group.ranks.some((rank) => this.rows.get(rank)?.is_notable);
        const style = { top: `${top}px`, height: `${Math.max(1, tall - 1)}px` };
        bars.push(h("i", { class: `${place % 2 ? "odd" : ""} ${bad ? "late" : ""}`, style }));
        const at = top + Math.min(tall, LABEL * 2) / 2;
        labels.push({ text: group.label, at, bad, title: `${group.label}: ${group.ranks.length} ranks` });
      } else labels.push(...this.ownLabels(group.ranks, line));
      line += group.ranks.length;
    });
    return { labels, bars };
  }

  /** Return a label for each row, if rows are high enough; else for those that need attention and a few others. */
  private ownLabels(ranks: readonly number[], line: number): GutterLabel[] {
    const every =
      2 ** Math.ceil(Math.log2(APART / Math.max(1, Math.min(...ranks.map((_, at) => this.tall(line + at))))));
    const isSorted = ranks.every((rank, at) => at === 0 || rank > (ranks[at - 1] ?? 0));
    const found = ranks.flatMap((rank, at) => {
      const bad = this.rows.get(rank)?.is_notable ?? false;
      const isShown = bad || this.noted.has(rank) || this.tall(line + at) >= NOTED || (isSorted && rank % every === 0);
      const middle = (this.tops[line + at] ?? 0) + this.tall(line + at) / 2;
      return isShown ? [{ text: String(rank), at: middle, bad, title: `rank ${rank}` }] : [];
    });
    const rest = ranks.length - found.length;
    const first = ranks.findIndex((rank, at) => !this.noted.has(rank) && this.tall(line + at) < NOTED);
    if (rest > 0 && !isSorted && first >= 0) {
      const at = (this.tops[line + first] ?? 0) + REST;
      found.push({ text: `${count(rest)} more`, at, bad: false, title: "these ranks are about as fast as the median" });
    }
    return found;
  }

  private draw(): void {
    const map = this.map;
    if (!map || this.width <= 0) return;
    const [columns, rows] = [this.columns, this.order.length];
    if (!columns || !rows) {
      this.canvas.width = 0;
      this.element.setAttribute("data-state", "empty");
      return;
    }
    const scale = this.scale(map);
    const image = new ImageData(columns, this.height);
    const ground = isDark() ? [20, 26, 34] : [255, 255, 255];
    this.order.forEach((rank, line) => {
      const own = this.values.get(rank) ?? [];
      for (let column = 0; column < columns; column += 1) {
        const one = own[column];
        const [red, green, blue] = one === null || one === undefined ? ground : scale(one, column);
        for (let y = this.tops[line] ?? 0; y < (this.tops[line + 1] ?? 0); y += 1)
          image.data.set([red ?? 0, green ?? 0, blue ?? 0, 255], (y * columns + column) * 4);
      }
    });
    [this.canvas.width, this.canvas.height] = [columns, this.height];
    this.canvas.style.setProperty("height", `${this.height}px`);
    this.canvas.getContext("2d")?.putImageData(image, 0, 0);
    this.drawAxis(map);
    this.element.setAttribute("data-state", "drawn");
    this.element.setAttribute("data-drawn", String(++this.draws));
    this.placeBox();
  }

  /** Return the color of a value, and draw the legend. */
  private scale(map: RankHeat): Scale {
    const dark = isDark();
    const paint = (colour: (share: number) => readonly number[]): string =>
      `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((at) => `rgb(${colour(at).join(",")})`).join(",")})`;
    if (map.is_difference) {
      const relative = (late: number, bucket: number): number => late / (map.usual[bucket] || Infinity);
      let top = 0;
      for (const row of map.values)
        row.forEach((late, bucket) => {
          if (late !== null) top = Math.max(top, relative(late, bucket));
        });
      top = Math.max(LEAST, Math.min(MOST, top));
      const ramp = h("i", { style: { background: paint((at) => lateShade(at, dark)) } });
      fill(this.legend, "on time", ramp, `late by ${share(top)} of a step`);
      return (late, bucket) => lateShade(relative(late, bucket) / top, dark);
    }
    const known = map.values.flat().filter((one): one is number => one !== null);
    known.sort((one, other) => one - other);
    const low = known[Math.floor(known.length * 0.005)] ?? 0;
    const high = known[Math.ceil(known.length * 0.995) - 1] ?? 1;
    fill(this.legend, value(low, map.unit), h("i", { style: { background: paint(shade) } }), value(high, map.unit));
    return (one) => shade(high > low ? (one - low) / (high - low) : 0.5);
  }

  private drawAxis(map: RankHeat): void {
    const [first, last] = [map.edges[0] ?? 0, map.edges.at(-1) ?? 1];
    const wanted = Math.max(2, Math.floor(this.width / 110));
    const raw = (last - first) / wanted;
    const power = 10 ** Math.floor(Math.log10(Math.max(1, raw)));
    const gap = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw) ?? raw);
    const marks: HTMLElement[] = [];
    for (let step = Math.ceil(first / gap) * gap; step < last; step += gap) {
      const at = (step - first) / (last - first);
      if (at > 0.97) break;
      marks.push(h("span", { style: { left: `${at * 100}%` } }, count(step)));
    }
    fill(this.axis, marks, h("em", {}, "step"));
  }

  private cellAt(event: MouseEvent): Cell | null {
    const box = this.plot.getBoundingClientRect();
    const rank = this.order[this.lineAt(event.clientY - box.top)];
    const bucket = Math.floor(((event.clientX - box.left) / (box.width || 1)) * this.columns);
    if (rank === undefined || !this.columns) return null;
    return { rank, step: this.edge(bucket) };
  }

  /** Return the first step of a bucket, or of the one next to it that exists. */
  private edge(bucket: number): number {
    return this.map?.edges[Math.max(0, Math.min(this.columns - 1, bucket))] ?? 0;
  }

  /** Return the bucket of a step, or the one next to it. */
  private bucketOf(step: number): number {
    const next = (this.map?.edges ?? []).findIndex((edge) => edge > step);
    return Math.max(0, Math.min(this.columns - 1, (next < 0 ? this.columns : next) - 1));
  }

  private stepAt(event: MouseEvent): number {
    const box = this.plot.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (event.clientX - box.left) / (box.width || 1)));
    const edges = this.map?.edges ?? [0, 1];
    return (edges[0] ?? 0) + part * ((edges.at(-1) ?? 1) - (edges[0] ?? 0));
  }

  private pressed(event: PointerEvent): void {
    if (event.button === 0 && event.pointerType !== "touch") this.dragged = event.clientX;
  }

  private moved(event: PointerEvent): void {
    const cell = this.cellAt(event);
    if (!cell) return;
    if (this.dragged !== null && Math.abs(event.clientX - this.dragged) > DRAGGED) {
      const left = this.plot.getBoundingClientRect().left;
      const [from, to] = [this.dragged - left, event.clientX - left].sort((one, other) => one - other);
      show(this.band, true);
      this.band.style.setProperty("left", `${from ?? 0}px`);
      this.band.style.setProperty("width", `${(to ?? 0) - (from ?? 0)}px`);
      hideTip();
      return;
    }
    this.tip(event, cell);
  }

  private released(event: PointerEvent): void {
    const from = this.dragged;
    this.dragged = null;
    show(this.band, false);
    if (from !== null && Math.abs(event.clientX - from) > DRAGGED) {
      const begun = { clientX: from, clientY: event.clientY } as MouseEvent;
      const [first, last] = [this.stepAt(begun), this.stepAt(event)].sort((one, other) => one - other);
      this.events.zoom([Math.floor(first ?? 0), Math.max(Math.floor(first ?? 0) + 1, Math.ceil(last ?? 0))]);
      return;
    }
    const cell = this.cellAt(event);
    if (cell) this.events.select(cell);
  }

  private left(): void {
    hideTip();
    this.dragged = null;
    show(this.band, false);
  }

  private tip(event: MouseEvent, cell: Cell): void {
    const map = this.map;
    if (!map) return;
    const row = this.rows.get(cell.rank);
    const bucket = this.bucketOf(cell.step);
    const one = this.values.get(cell.rank)?.[bucket] ?? null;
    const usual = map.usual[bucket] ?? null;
    const [first, next] = [map.edges[bucket] ?? 0, map.edges[bucket + 1] ?? 1];
    const steps = next - first > 1 ? `steps ${count(first)} to ${count(next - 1)}` : `step ${count(first)}`;
    const text = one === null ? "not recorded" : value(one, map.unit);
    const late = map.is_difference;
    showTip(
      event.clientX,
      event.clientY,
      `rank ${cell.rank}${row?.host ? ` on ${row.host}` : ""}${row?.blame ? ` ${row.blame}` : ""}, ${steps}`,
      [{ colour: "transparent", label: late ? "beyond the median rank" : map.what, text }],
      usual === null ? [] : [`${late ? "a step of the median rank" : "median rank"}: ${value(usual, map.unit)}`],
    );
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const now = this.selected ?? { rank: this.order[0] ?? 0, step: this.edge(this.columns - 1) };
    const [line, bucket] = [Math.max(0, this.order.indexOf(now.rank)), this.bucketOf(now.step)];
    const to = (rows: number, columns: number): (() => void) => {
      return () => {
        const rank = this.order[Math.max(0, Math.min(this.order.length - 1, line + rows))] ?? now.rank;
        this.events.select({ rank, step: this.edge(bucket + columns) });
      };
    };
    const act: Record<string, () => void> = {
      ArrowUp: to(-1, 0),
      ArrowDown: to(1, 0),
      ArrowLeft: to(0, -1),
      ArrowRight: to(0, 1),
      PageUp: to(-16, 0),
      PageDown: to(16, 0),
      Home: to(0, -this.columns),
      End: to(0, this.columns),
      "+": () => this.scaleAround(bucket, 0.25),
      "-": () => this.scaleAround(bucket, 1),
      Escape: () => this.plot.blur(),
    };
    const found = act[event.key];
    if (!found) return;
    event.preventDefault();
    event.stopPropagation();
    found();
  }

  /** Show a share of the steps to either side of a bucket. */
  private scaleAround(bucket: number, part: number): void {
    const edges = this.map?.edges ?? [];
    const [first, last] = [edges[0] ?? 0, edges.at(-1) ?? 1];
    const [middle, half] = [edges[bucket] ?? first, Math.max(2, (last - first) * part)];
    this.events.zoom([Math.max(0, Math.round(middle - half)), Math.round(middle + half)]);
  }

  private placeBox(): void {
    const line = this.selected ? this.order.indexOf(this.selected.rank) : -1;
    show(this.box, line >= 0 && this.columns > 0);
    if (!this.selected || line < 0 || !this.columns) return;
    const tall = Math.max(7, this.tall(line));
    const top = (this.tops[line] ?? 0) - (tall - this.tall(line)) / 2;
    const wide = Math.max(5, this.width / this.columns);
    const left = ((this.bucketOf(this.selected.step) + 0.5) / this.columns) * this.width - wide / 2;
    const style = { top: `${top}px`, height: `${tall}px`, left: `${left}px`, width: `${wide}px` };
    for (const [name, text] of Object.entries(style)) this.box.style.setProperty(name, text);
  }
}
