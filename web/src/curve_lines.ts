/** Turn curves of the server into lines of a chart. */

import type { Axis } from "./chart.ts";
import { fold, type Line } from "./chart_line.ts";
import type { CurveBuffer } from "./curve_buffer.ts";
import type { Curve, Curves } from "./curves.ts";

export interface Naming {
  label: (held: CurveBuffer) => string;
  order: (held: CurveBuffer) => number;
  bare: boolean;
}

/** Returns the x of each point of a curve. */
export type Across = (held: CurveBuffer) => Float64Array;

/**
 * Return the x of curves: steps or times; samples without a step get one from the clock of their run.
 *
 * On the axis "time" each run starts at 0.
 */
export function acrossOf(curves: Curves, axis: Axis): Across {
  if (axis === "time" && curves.starts) {
    const { starts } = curves;
    return (held) => held.column("time").map((at) => at - (starts.get(held.run) ?? 0));
  }
  if (axis !== "step") return (held) => held.column("time");
  return (held) => {
    const step = held.column("step");
    if (!step.length || Number.isFinite(step[0]) || Number.isFinite(step[step.length - 1])) return step;
    const clock = curves.clock(held.run);
    return clock ? held.column("time").map((at) => clock.stepAt(at) ?? NaN) : step;
  };
}

/** Return the lines of one curve: several if x goes back, as after a resume from an older checkpoint. */
export function linesOf(held: CurveBuffer, across: Across, naming: Naming): Line[] {
  const columns = held.columns();
  const x = across(held);
  const cuts = [0];
  for (let place = 1; place < x.length; place += 1) if ((x[place] ?? 0) < (x[place - 1] ?? 0)) cuts.push(place);
  const found: Line[] = [];
  cuts.forEach((first, which) => {
    const end = cuts[which + 1] ?? x.length;
    if (end <= first || !Number.isFinite(x[first] ?? NaN)) return;
    const part = <T extends Float64Array>(column: T): Float64Array => column.subarray(first, end);
    const own = part(x);
    const spoiled = part(columns.bad);
    let badCount = 0;
    const bad: number[] = [];
    spoiled.forEach((many, place) => {
      if (many > 0) {
        badCount += many;
        bad.push(own[place] ?? 0);
      }
    });
    found.push({
      key: `${held.run} ${held.name} ${held.rank} ${held.attempt} ${which}`,
      group: held.run,
      label: naming.label(held),
      colour: naming.order(held),
      x: own,
      mean: part(columns.mean),
      min: part(columns.min),
      max: part(columns.max),
      last: part(columns.last),
      count: part(columns.count),
      bad: bad.length ? Float64Array.from(bad) : undefined,
      badCount,
      bare: naming.bare,
      faint: which < cuts.length - 1,
    });
  });
  return found;
}

/** Return the lines of one metric; earlier attempts are faint, and `band` folds many ranks into a band. */
export function metricLines(curve: Curve, zoomed: boolean, across: Across, naming: Naming, band: boolean): Line[] {
  const held = zoomed && curve.zoomed?.length ? curve.zoomed : curve.whole;
  const found: Line[] = [];
  for (const run of new Set(held.map((one) => one.run))) {
    const own = held.filter((one) => one.run === run);
    const last = Math.max(...own.map((one) => one.attempt));
    for (const attempt of new Set(own.map((one) => one.attempt))) {
      const some = own.filter((one) => one.attempt === attempt);
      const lines = some
        .flatMap((one) => linesOf(one, across, naming))
        .map((line) => (attempt < last ? { ...line, faint: true, label: `${line.label} · attempt ${attempt}` } : line));
      if (some.some((one) => one.folded) && some.length > 1) {
        // the server has folded the ranks, and sent the worst of them too
        const ours = (one: CurveBuffer): Line[] => linesOf(one, across, naming);
        const faint = attempt < last;
        for (const one of some.filter((held) => !held.folded))
          found.push(...ours(one).map((line) => (faint ? { ...line, faint } : worst(line))));
        for (const one of some.filter((held) => held.folded))
          found.push(
            ...ours(one).map((line) => ({
              ...line,
              label: "mean of all ranks",
              key: `ranks ${line.key}`,
              faint: line.faint || faint,
            })),
          );
      } else found.push(...(band && some.length > 1 ? banded(lines, some) : lines));
    }
  }
  return found;
}

function banded(lines: Line[], held: CurveBuffer[]): Line[] {
  const folded = fold(lines);
  if (!folded) return [];
  const colour = Math.min(...lines.map((line) => Number(line.colour)));
  const band = {
    ...folded.band,
    colour,
    label: `mean of ${held.length} ranks`,
    bad: merged(lines),
    badCount: lines.reduce((sum, line) => sum + (line.badCount ?? 0), 0),
  };
  const { farthest } = folded;
  return farthest && !farthest.faint ? [worst(farthest), band] : [band];
}

function worst(line: Line): Line {
  return { ...line, colour: 1, bare: true, faint: false, label: `${line.label}, farthest from the mean` };
}

function merged(lines: Line[]): Float64Array | undefined {
  const all = lines.flatMap((line) => [...(line.bad ?? [])]).sort((one, other) => one - other);
  return all.length ? Float64Array.from(all) : undefined;
}
