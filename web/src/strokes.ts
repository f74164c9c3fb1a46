/** Lines, bands and marks of a chart, drawn on uPlot's canvas. */

import { sharer } from "./axis.ts";
import type { Line } from "./chart_line.ts";
import { colour, lineColour, lineDash } from "./theme.ts";

export interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
  x: readonly [number, number];
  y: readonly [number, number];
  log: boolean;
  /** Canvas pixels per CSS pixel. */
  ratio: number;
}

export interface Drawn {
  line: Line;
  smoothed: Float64Array | null;
}

export interface MarkLine {
  x: number;
  text: string;
  kind: "alert" | "checkpoint" | "epoch" | "attempt" | "event";
}

export interface Limit {
  value: number;
  label: string;
}

type Scale = (value: number) => number;

export function scaleX(frame: Frame): Scale {
  const factor = frame.width / (frame.x[1] - frame.x[0] || 1);
  return (value) => frame.left + (value - frame.x[0]) * factor;
}

export function scaleY(frame: Frame): Scale {
  const bottom = frame.top + frame.height;
  const share = sharer(frame.y, frame.log);
  // far beyond its edges a canvas draws wrong lines
  return (value) => bottom - Math.max(-10, Math.min(10, share(value))) * frame.height;
}

function ink(line: Line): string {
  return typeof line.colour === "number" ? lineColour(line.colour) : colour(line.colour);
}

/** Return the first bucket to draw and one past the last, with one bucket beyond each edge. */
function inSight(line: Line, frame: Frame): [number, number] {
  const { x } = line;
  let first = 0;
  while (first + 1 < x.length && (x[first + 1] ?? 0) < frame.x[0]) first += 1;
  let end = first;
  while (end < x.length && (x[end] ?? 0) <= frame.x[1]) end += 1;
  return [first, Math.min(x.length, end + 1)];
}

/** Draw lines with their bands, limits and marks; clipped to the plot. */
export function paint(
  context: CanvasRenderingContext2D,
  frame: Frame,
  drawn: Drawn[],
  marks: MarkLine[],
  limits: Limit[],
): void {
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, frame.width, frame.height);
  context.clip();
  context.lineJoin = "round";
  paintMarks(context, frame, marks);
  paintLimits(context, frame, limits);
  for (const each of drawn) paintBand(context, frame, each.line);
  for (const each of drawn) paintLine(context, frame, each);
  for (const each of drawn) paintBad(context, frame, each.line);
  paintBeyond(context, frame, drawn);
  context.restore();
}

function paintBand(context: CanvasRenderingContext2D, frame: Frame, line: Line): void {
  if (line.bare) return;
  const [first, end] = inSight(line, frame);
  const [px, py] = [scaleX(frame), scaleY(frame)];
  let begun = -1;
  const close = (until: number): void => {
    if (begun < 0) return;
    const [above, below] = [new Path2D(), new Path2D()];
    const band = new Path2D();
    for (let place = begun; place < until; place += 1) {
      const [x, y] = [px(line.x[place] ?? 0), py(line.max[place] ?? 0)];
      band.lineTo(x, y);
      above.lineTo(x, y);
    }
    for (let place = until - 1; place >= begun; place -= 1) {
      const [x, y] = [px(line.x[place] ?? 0), py(line.min[place] ?? 0)];
      band.lineTo(x, y);
      below.lineTo(x, y);
    }
    context.globalAlpha = line.faint ? 0.08 : 0.16;
    context.fill(band);
    context.globalAlpha = line.faint ? 0.2 : 0.5;
    context.stroke(above);
    context.stroke(below);
    begun = -1;
  };
  let wide = false;
  for (let place = first; place < end && !wide; place += 1) wide = (line.max[place] ?? 0) > (line.min[place] ?? 0);
  if (!wide) return;
  context.fillStyle = context.strokeStyle = ink(line);
  context.lineWidth = Math.max(1, 0.75 * frame.ratio);
  context.setLineDash([]);
  const breaks = new Set(line.breaks ?? []);
  for (let place = first; place < end; place += 1) {
    if (breaks.has(place) || !Number.isFinite(line.max[place])) close(place);
    if (begun < 0 && Number.isFinite(line.max[place])) begun = place;
  }
  close(end);
  context.globalAlpha = 1;
}

function paintLine(context: CanvasRenderingContext2D, frame: Frame, { line, smoothed }: Drawn): void {
  context.strokeStyle = context.fillStyle = ink(line);
  const dash = typeof line.colour === "number" ? lineDash(line.colour) : [];
  context.setLineDash(dash.map((length) => length * frame.ratio));
  if (smoothed) {
    stroke(context, frame, line, line.mean, 1, line.faint ? 0.15 : 0.35);
    stroke(context, frame, line, smoothed, 1.75, line.faint ? 0.5 : 1);
  } else stroke(context, frame, line, line.mean, line.faint ? 1 : 1.5, line.faint ? 0.45 : 1);
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function stroke(
  context: CanvasRenderingContext2D,
  frame: Frame,
  line: Line,
  values: Float64Array,
  width: number,
  alpha: number,
): void {
  const [first, end] = inSight(line, frame);
  const [px, py] = [scaleX(frame), scaleY(frame)];
  const breaks = new Set(line.breaks ?? []);
  const path = new Path2D();
  const lone: [number, number][] = [];
  let run = 0;
  let before: [number, number] = [0, 0];
  for (let place = first; place <= end; place += 1) {
    const value = place < end ? (values[place] ?? NaN) : NaN;
    if (!Number.isFinite(value) || breaks.has(place)) {
      if (run === 1) lone.push(before);
      run = 0;
      if (!Number.isFinite(value)) continue;
    }
    before = [px(line.x[place] ?? 0), py(value)];
    if (run === 0) path.moveTo(...before);
    else path.lineTo(...before);
    run += 1;
  }
  context.globalAlpha = alpha;
  context.lineWidth = width * frame.ratio;
  context.stroke(path);
  for (const [x, y] of sparse(first, end, frame) && values === line.mean
    ? dots(line, values, first, end, px, py)
    : lone) {
    context.beginPath();
    context.arc(x, y, 2 * frame.ratio, 0, 2 * Math.PI);
    context.fill();
  }
}

/** Return whether there are few enough points to draw each of them. */
function sparse(first: number, end: number, frame: Frame): boolean {
  return (end - first) * 14 * frame.ratio < frame.width;
}

function dots(line: Line, values: Float64Array, first: number, end: number, px: Scale, py: Scale): [number, number][] {
  const found: [number, number][] = [];
  for (let place = first; place < end; place += 1) {
    const value = values[place] ?? NaN;
    if (Number.isFinite(value)) found.push([px(line.x[place] ?? 0), py(value)]);
  }
  return found;
}

/** Mark the positions of values that are not finite. */
function paintBad(context: CanvasRenderingContext2D, frame: Frame, line: Line): void {
  if (!line.bad?.length) return;
  const px = scaleX(frame);
  const bottom = frame.top + frame.height;
  const size = 4 * frame.ratio;
  context.fillStyle = context.strokeStyle = colour("bad");
  let last = -Infinity;
  for (const at of line.bad) {
    const x = px(at);
    if (x - last < size || x < frame.left - size || x > frame.left + frame.width + size) continue;
    last = x;
    context.globalAlpha = 0.35;
    context.lineWidth = frame.ratio;
    context.beginPath();
    context.moveTo(x, frame.top);
    context.lineTo(x, bottom);
    context.stroke();
    context.globalAlpha = 1;
    context.beginPath();
    context.moveTo(x - size, bottom);
    context.lineTo(x + size, bottom);
    context.lineTo(x, bottom - 1.6 * size);
    context.fill();
  }
}

/** Mark buckets beyond the plot with a caret at its edge. */
function paintBeyond(context: CanvasRenderingContext2D, frame: Frame, drawn: Drawn[]): void {
  const px = scaleX(frame);
  const [low, high] = frame.y;
  const size = 3 * frame.ratio;
  for (const { line } of drawn) {
    const [first, end] = inSight(line, frame);
    context.fillStyle = ink(line);
    let last = -Infinity;
    for (let place = first; place < end; place += 1) {
      const up = (line.bare ? line.mean[place] : line.max[place]) ?? NaN;
      const down = (line.bare ? line.mean[place] : line.min[place]) ?? NaN;
      const over = up > high;
      if (!(over || (down < low && !frame.log))) continue;
      const x = px(line.x[place] ?? 0);
      if (x - last < 2 * size) continue;
      last = x;
      const edge = over ? frame.top : frame.top + frame.height;
      const tip = over ? 2 * size : -2 * size;
      context.beginPath();
      context.moveTo(x - size, edge + tip);
      context.lineTo(x + size, edge + tip);
      context.lineTo(x, edge);
      context.fill();
    }
  }
}

function paintLimits(context: CanvasRenderingContext2D, frame: Frame, limits: Limit[]): void {
  const py = scaleY(frame);
  context.font = `${10 * frame.ratio}px system-ui, sans-serif`;
  for (const { value, label } of limits) {
    const y = Math.round(py(value)) + 0.5;
    if (y < frame.top || y > frame.top + frame.height) continue;
    context.strokeStyle = context.fillStyle = colour("bad");
    context.globalAlpha = 0.8;
    context.lineWidth = frame.ratio;
    context.setLineDash([5 * frame.ratio, 4 * frame.ratio]);
    context.beginPath();
    context.moveTo(frame.left, y);
    context.lineTo(frame.left + frame.width, y);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = "right";
    context.textBaseline = y - frame.top < 14 * frame.ratio ? "top" : "bottom";
    context.fillText(
      label,
      frame.left + frame.width - 4 * frame.ratio,
      y + (context.textBaseline === "top" ? 2 : -2) * frame.ratio,
    );
  }
  context.globalAlpha = 1;
}

const MARK_INK: Record<MarkLine["kind"], string> = {
  alert: "bad",
  attempt: "text",
  checkpoint: "mark",
  epoch: "mark",
  event: "mark",
};
const CROWD = 40;

function paintMarks(context: CanvasRenderingContext2D, frame: Frame, marks: MarkLine[]): void {
  const px = scaleX(frame);
  const shown = marks.filter((mark) => mark.x >= frame.x[0] && mark.x <= frame.x[1]);
  for (const mark of shown) {
    const x = Math.round(px(mark.x)) + 0.5;
    const strong = mark.kind === "alert" || mark.kind === "attempt";
    context.strokeStyle = context.fillStyle = colour(MARK_INK[mark.kind]);
    context.lineWidth = frame.ratio;
    context.setLineDash(
      mark.kind === "epoch" || mark.kind === "checkpoint"
        ? [2 * frame.ratio, 3 * frame.ratio]
        : [4 * frame.ratio, 3 * frame.ratio],
    );
    context.globalAlpha = 0.5;
    // too many for lines: one tick each at the bottom
    const from = !strong && shown.length > CROWD ? frame.top + frame.height - 5 * frame.ratio : frame.top;
    context.beginPath();
    context.moveTo(x, from);
    context.lineTo(x, frame.top + frame.height);
    context.stroke();
    context.setLineDash([]);
    if (from > frame.top) continue;
    context.globalAlpha = strong ? 1 : 0.7;
    context.beginPath();
    const size = 3 * frame.ratio;
    if (mark.kind === "checkpoint") context.rect(x - size, frame.top, 2 * size, 2 * size);
    else {
      context.moveTo(x - size, frame.top);
      context.lineTo(x + size, frame.top);
      context.lineTo(x, frame.top + 2 * size);
    }
    context.fill();
  }
  context.globalAlpha = 1;
}
