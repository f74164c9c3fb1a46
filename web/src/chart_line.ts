/** One line of a chart: buckets of points, and what is worked out from them. Pure functions over arrays. */

/** Buckets in order of x. A bucket of one point has min = mean = max. */
export interface Line {
  key: string;
  label: string;
  /** The run it is of, where lines of several runs are in one chart. */
  group?: string | undefined;
  /** Place in the palette of lines; or the name of a colour of the style. */
  colour: number | string;
  x: Float64Array;
  mean: Float64Array;
  min: Float64Array;
  max: Float64Array;
  /** The last value of each bucket. */
  last: Float64Array;
  count: Float64Array;
  /** Where points were not finite, and how many there were. */
  bad?: Float64Array | undefined;
  badCount?: number | undefined;
  /** Places at which the line begins anew (another attempt): no stroke leads there. */
  breaks?: number[] | undefined;
  /** Drawn behind the others, thin. */
  faint?: boolean | undefined;
  /** No band of min and max. */
  bare?: boolean | undefined;
}

/** Return the place of the last x that is not beyond `at`; -1 before the first. */
export function placeOf(x: Float64Array, at: number): number {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((x[middle] ?? 0) <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Return the place of the nearest x; -1 of an empty line. */
export function nearest(x: Float64Array, at: number): number {
  const place = placeOf(x, at);
  if (place < 0) return x.length ? 0 : -1;
  if (place + 1 >= x.length) return place;
  return at - (x[place] ?? 0) <= (x[place + 1] ?? 0) - at ? place : place + 1;
}

/** Return the value of a line at x; where there is no x, the last one in view, which ends at `end`. */
export function valueAt(line: Line, x: number | null, end: number): number | null {
  return (x === null ? line.last[Math.max(0, placeOf(line.x, end))] : line.mean[nearest(line.x, x)]) ?? null;
}

/**
 * Smooth by an exponential mean over about `points` recorded points, from its first value without bias.
 *
 * A bucket counts as many points as it holds, so the curve is the same at every zoom.
 */
export function smooth(line: Line, points: number): Float64Array {
  const result = new Float64Array(line.mean.length);
  const keep = 1 - 2 / (points + 1);
  let sum = 0;
  let weight = 0;
  const breaks = new Set(line.breaks ?? []);
  for (let place = 0; place < result.length; place += 1) {
    if (breaks.has(place)) sum = weight = 0;
    const value = line.mean[place] ?? NaN;
    if (Number.isFinite(value)) {
      const left = keep ** Math.max(1, line.count[place] ?? 1);
      sum = sum * left + value * (1 - left);
      weight = weight * left + (1 - left);
      result[place] = sum / weight;
    } else result[place] = NaN; // what is not there is not smoothed over
  }
  return result;
}

export interface Extent {
  min: number;
  max: number;
  /** Buckets beyond, where outliers are clipped. */
  above: number;
  below: number;
  /** The most and the least there is. */
  most: number;
  least: number;
}

const SPREAD = 6;
/** How many times its own middle a run must reach to count as diverged, and how many heights of the others beyond them. */
const [WILD, FAR] = [10, 5];
/** Buckets from which outliers are told. */
const ENOUGH = 20;

interface Values {
  lows: number[];
  highs: number[];
  means: number[];
}

/** Return the range of values of lines inside [from, to]; clipped to where nearly all of it is, if asked. `positive`: for a log axis. */
export function extent(lines: Line[], from: number, to: number, clip: boolean, positive: boolean): Extent | null {
  const groups = [...new Set(lines.map((line) => line.group))];
  const all = groups
    .map((group) =>
      valuesOf(
        lines.filter((line) => line.group === group),
        from,
        to,
        positive,
      ),
    )
    .filter((some) => some.lows.length);
  if (!all.length) return null;
  let [least, most] = [Infinity, -Infinity];
  for (const { lows, highs } of all) {
    for (const low of lows) if (low < least) least = low;
    for (const high of highs) if (high > most) most = high;
  }
  if (!clip) return { min: least, max: most, above: 0, below: 0, most, least };
  const limits = together(all.map((some) => usual(some, positive)));
  const [floor, ceiling] = positive ? [10 ** limits[0], 10 ** limits[1]] : limits;
  const min = Math.max(least, floor);
  const max = Math.max(min, Math.min(most, ceiling));
  const sum = (count: (some: Values) => number): number => all.reduce((total, some) => total + count(some), 0);
  return {
    min,
    max,
    most,
    least,
    above: sum(({ highs }) => highs.filter((high) => high > max).length),
    below: sum(({ lows }) => lows.filter((low) => low < min).length),
  };
}

/** Collect the buckets of lines inside [from, to]. */
function valuesOf(lines: Line[], from: number, to: number, positive: boolean): Values {
  const found: Values = { lows: [], highs: [], means: [] };
  for (const line of lines) {
    const first = Math.max(0, placeOf(line.x, from));
    for (let place = first; place < line.x.length; place += 1) {
      if (place > first && (line.x[place - 1] ?? 0) > to) break;
      const low = line.bare ? line.mean[place] : line.min[place];
      const high = line.bare ? line.mean[place] : line.max[place];
      if (low === undefined || high === undefined || !Number.isFinite(low) || !Number.isFinite(high)) continue;
      if (positive && high <= 0) continue;
      const mean = line.mean[place] ?? high;
      found.lows.push(positive && low <= 0 ? high : low);
      found.highs.push(high);
      found.means.push(positive && mean <= 0 ? high : mean);
    }
  }
  return found;
}

interface Reach {
  low: number;
  high: number;
  /** It goes far beyond its own middle, as a run that diverges does. */
  wild: boolean;
}

/**
 * Return where nearly all values of one run are: within a few spreads of the middle 90 % of the means, as a loss falls and that is no outlier.
 *
 * On a log axis everything is in powers of 10, so that what is far is told by its order of magnitude.
 */
function usual({ lows, highs, means }: Values, log: boolean): Reach {
  const sorted = (log ? Float64Array.from(means, Math.log10) : Float64Array.from(means)).sort();
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
  const spread = Math.max(at(0.95) - at(0.05), 1e-12 * Math.max(Math.abs(at(0.5)), 1e-300));
  // a bucket of noise reaches beyond its mean: as far as most do is usual
  const heights = Float64Array.from(highs, (high, place) =>
    log ? Math.log10(high / (lows[place] ?? high)) : high - (lows[place] ?? high),
  ).sort();
  const air = (SPREAD / 4) * spread + Math.min(heights[heights.length >> 1] ?? 0, (SPREAD / 2) * spread);
  const many = sorted.length >= ENOUGH;
  const [least, most] = [
    lows.reduce((one, other) => Math.min(one, other), Infinity),
    highs.reduce((one, other) => Math.max(one, other), -Infinity),
  ].map((one) => (log ? Math.log10(one) : one)) as [number, number];
  const low = many ? Math.max(least, at(0.05) - air) : least;
  const high = many ? Math.min(most, at(0.95) + air) : most;
  const wild = log
    ? Math.max(high - at(0.5), at(0.5) - low) > Math.log10(WILD)
    : Math.max(Math.abs(high), Math.abs(low)) > WILD * Math.abs(at(0.5));
  return { low, high, wild };
}

/** Return the range of several runs: one that diverges far from the others does not flatten them. */
function together(all: Reach[]): [number, number] {
  const union = (some: Reach[]): [number, number] => [
    Math.min(...some.map(({ low }) => low)),
    Math.max(...some.map(({ high }) => high)),
  ];
  const calm = all.filter(({ wild }) => !wild);
  if (!calm.length || calm.length === all.length) return union(all);
  const [low, high] = union(calm);
  const height = high - low || Math.abs(high) * 0.1 || 1;
  const cut = all.map((one) => ({
    low: one.wild && one.low < low - FAR * height ? low - height / 2 : one.low,
    high: one.wild && one.high > high + FAR * height ? high + height / 2 : one.high,
    wild: one.wild,
  }));
  return union(cut);
}

/** Mean distance of a rank from the mean of all, as a share of the curve's height, from which it is worth a line. */
const NOTABLE = 0.01;

/** Fold the lines of many ranks into the band they lie in, and the one that is farthest from the middle. */
export function fold(lines: Line[]): { band: Line; farthest: Line | null } | null {
  const base = lines.reduce<Line | null>((best, line) => (!best || line.x.length > best.x.length ? line : best), null);
  if (!base) return null;
  const size = base.x.length;
  const [mean, min, max, last, total] = [0, 1, 2, 3, 4].map(() => new Float64Array(size)) as [
    Float64Array,
    Float64Array,
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  min.fill(Infinity);
  max.fill(-Infinity);
  const parts = new Float64Array(size);
  const places = lines.map((line) => Int32Array.from(base.x, (x) => nearest(line.x, x)));
  lines.forEach((line, which) => {
    const own = places[which] ?? new Int32Array(0);
    for (let place = 0; place < size; place += 1) {
      const there = own[place] ?? -1;
      const value = line.mean[there] ?? NaN;
      if (there < 0 || !Number.isFinite(value)) continue;
      mean[place] = (mean[place] ?? 0) + value;
      last[place] = (last[place] ?? 0) + (line.last[there] ?? NaN);
      parts[place] = (parts[place] ?? 0) + 1;
      total[place] = (total[place] ?? 0) + (line.count[there] ?? 1);
      min[place] = Math.min(min[place] ?? Infinity, line.min[there] ?? value);
      max[place] = Math.max(max[place] ?? -Infinity, line.max[there] ?? value);
    }
  });
  for (let place = 0; place < size; place += 1) {
    const parted = parts[place] ?? 0;
    mean[place] = parted ? (mean[place] ?? 0) / parted : NaN;
    last[place] = parted ? (last[place] ?? 0) / parted : NaN;
    if (!parted) min[place] = max[place] = NaN;
  }
  let farthest: Line | null = null;
  let most = 0;
  lines.forEach((line, which) => {
    const own = places[which] ?? new Int32Array(0);
    let away = 0;
    for (let place = 0; place < size; place += 1) {
      const value = line.mean[own[place] ?? -1] ?? NaN;
      if (Number.isFinite(value)) away += Math.abs(value - (mean[place] ?? value));
    }
    if (away > most) [most, farthest] = [away, line];
  });
  const range = Math.max(...mean.filter(Number.isFinite)) - Math.min(...mean.filter(Number.isFinite));
  if (most / size < NOTABLE * range) farthest = null;
  const band = { ...base, key: "ranks", label: `mean of ${lines.length} ranks`, mean, min, max, last, count: total };
  return { band, farthest };
}
