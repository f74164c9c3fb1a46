/** One line of a chart: buckets of points, and figures computed from them. Pure functions over arrays. */

/** Buckets in order of x. A bucket of one point has min = mean = max. */
export interface Line {
  key: string;
  label: string;
  /** The run of the line, in a chart of several runs. */
  group?: string | undefined;
  /** Index in the palette of lines, or the name of a color of the style. */
  colour: number | string;
  x: Float64Array;
  mean: Float64Array;
  min: Float64Array;
  max: Float64Array;
  /** The last value of each bucket. */
  last: Float64Array;
  count: Float64Array;
  /** Positions of points that are not finite, and their number. */
  bad?: Float64Array | undefined;
  badCount?: number | undefined;
  /** Indexes at which the line starts again (another attempt): no stroke leads there. */
  breaks?: number[] | undefined;
  /** Drawn thin, behind the other lines. */
  faint?: boolean | undefined;
  /** Without the band of minimum and maximum. */
  bare?: boolean | undefined;
}

/** Return the index of the last x that is not greater than `at`; -1 before the first. */
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

/** Return the index of the nearest x; -1 for an empty line. */
export function nearest(x: Float64Array, at: number): number {
  const place = placeOf(x, at);
  if (place < 0) return x.length ? 0 : -1;
  if (place + 1 >= x.length) return place;
  return at - (x[place] ?? 0) <= (x[place + 1] ?? 0) - at ? place : place + 1;
}

/** Return the value of a line at x; without x, the last value up to `end`. */
export function valueAt(line: Line, x: number | null, end: number): number | null {
  return (x === null ? line.last[Math.max(0, placeOf(line.x, end))] : line.mean[nearest(line.x, x)]) ?? null;
}

/**
 * Return the exponential moving average over about `points` recorded points, without bias at the start.
 *
 * A bucket counts as many points as it contains, so the curve is the same at every zoom.
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
  /** Clipped buckets above and below. */
  above: number;
  below: number;
  /** Largest and smallest value. */
  most: number;
  least: number;
}

const SPREAD = 6;
/** A run has diverged if it exceeds its own median by this factor, and the other runs by this many of their heights. */
const [WILD, FAR] = [10, 5];
/** Smallest number of buckets for finding outliers. */
const ENOUGH = 20;

interface Values {
  lows: number[];
  highs: number[];
  means: number[];
}

/** Return the range of values inside [from, to]; `clip` leaves outliers out, `positive` is for a log axis. */
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
  /** Whether it goes far beyond its own median, as a diverging run does. */
  wild: boolean;
}

/**
 * Return the range of almost all values of one run: a few spreads around the middle 90 % of the means.
 *
 * A falling loss is no outlier. On a log axis distances are orders of magnitude.
 */
function usual({ lows, highs, means }: Values, log: boolean): Reach {
  const sorted = (log ? Float64Array.from(means, Math.log10) : Float64Array.from(means)).sort();
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
  const spread = Math.max(at(0.95) - at(0.05), 1e-12 * Math.max(Math.abs(at(0.5)), 1e-300));
  // a noisy bucket reaches beyond its mean: the usual reach is no outlier
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

/** Return the range of several runs; a diverged run does not flatten the others. */
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

/** A rank gets its own line if its mean distance from the mean of all exceeds this share of the curve's height and its highest value. */
const NOTABLE = 0.01;

/** Fold the lines of many ranks into a band, and the line that is farthest from the mean. */
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
  const [low, high] = [Math.min(...mean.filter(Number.isFinite)), Math.max(...mean.filter(Number.isFinite))];
  if (most / size < NOTABLE * Math.max(high - low, Math.abs(high), Math.abs(low))) farthest = null;
  const band = { ...base, key: "ranks", label: `mean of ${lines.length} ranks`, mean, min, max, last, count: total };
  return { band, farthest };
}
