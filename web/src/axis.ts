/** Limits and ticks of an axis. Pure functions that never return more ticks than requested, for any values. */

/** Largest value of an axis: its height must be finite as well. */
const FARTHEST = Number.MAX_VALUE / 4;
/** Smallest height of an axis, absolute and relative to its values: below it labels would be equal. */
const [LEAST, FINEST] = [1e-300, 1e-6];

export type Reach = readonly [number, number];

/** Return limits of a linear axis with some margin; they include 0 if it is near. */
export function padded(least: number, most: number): [number, number] {
  if (least === most) {
    const air = Math.abs(least) * 0.1 || 1;
    return bounded(least >= 0 && least - air < 0 ? 0 : least - air, most + air);
  }
  const air = most * 0.06 - least * 0.06;
  const low = least >= 0 && least - 4 * air <= 0 ? 0 : least - air;
  const high = most <= 0 && most + 4 * air >= 0 ? 0 : most + air;
  return bounded(low, high);
}

function bounded(low: number, high: number): [number, number] {
  const [from, to] = [Math.max(-FARTHEST, low), Math.min(FARTHEST, high)];
  const air = (Math.max(LEAST, FINEST * Math.max(Math.abs(from), Math.abs(to))) - (to - from)) / 2;
  return air > 0 ? [from - air, to + air] : [from, to];
}

/** Return limits of a logarithmic axis for values above 0. */
export function paddedLog(least: number, most: number): [number, number] {
  const [low, high] = [Math.log10(least), Math.log10(most)];
  const air = Math.max(0.05 * (high - low), high - low < 1e-9 ? 0.3 : 0);
  return [Math.max(Number.MIN_VALUE, 10 ** (low - air)), Math.min(Number.MAX_VALUE, 10 ** (high + air))];
}

/** Return a function from a value to its position on the axis: 0 at the low end, 1 at the high end. */
export function sharer([low, high]: Reach, log: boolean): (value: number) => number {
  const [from, to] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const height = to - from || 1;
  return log ? (value) => (value > 0 ? (Math.log10(value) - from) / height : -1) : (value) => (value - from) / height;
}

/** Return at most `most` round values inside a linear axis; `binary` rounds to powers of 2. */
export function linearTicks([low, high]: Reach, most: number, binary = false): number[] {
  const rough = (high - low) / Math.max(1, most);
  if (!(rough > 0) || !Number.isFinite(rough)) return [];
  const { digit, power } = binary && rough > 0.5 ? { digit: 2 ** Math.ceil(Math.log2(rough)), power: 0 } : round(rough);
  const step = digit * Number(`1e${power}`);
  const first = Math.ceil(low / step);
  const found: number[] = [];
  for (let place = 0; place <= most; place += 1) {
    // exact through text: 3 * 0.1 is not 0.3
    const at = Number(`${(first + place) * digit}e${power}`) + 0;
    if (at > high || !Number.isFinite(at)) break;
    if (at >= low && at !== found[found.length - 1]) found.push(at);
  }
  return found;
}

/** Return the next larger number of 1, 2, 5, 10, 20, ... as digit and power of 10. */
function round(rough: number): { digit: number; power: number } {
  const power = Math.floor(Math.log10(rough));
  const digit = [1, 2, 5].find((one) => one * Number(`1e${power}`) >= rough * (1 - 1e-9));
  return digit ? { digit, power } : { digit: 1, power: power + 1 };
}

/** Return at most `most` round values inside a log axis: powers of 10, and values between them if there is room. */
export function logTicks([low, high]: Reach, most: number, binary = false): number[] {
  const [from, to] = [Math.log10(low), Math.log10(high)];
  const decades = to - from;
  if (!Number.isFinite(decades)) return [];
  if (decades < 1) return linearTicks([low, high], most, binary).filter((at) => at > 0);
  const stride = Math.max(1, Math.ceil((decades + 1) / most));
  for (const digits of stride > 1 ? [[1]] : [[1, 2, 5], [1, 3], [1]]) {
    const found: number[] = [];
    for (let power = Math.floor(from / stride) * stride; power <= to; power += stride)
      found.push(...digits.map((digit) => Number(`${digit}e${power}`)));
    const inside = found.filter((at) => at >= low && at <= high);
    if (inside.length <= most || digits.length === 1) return inside;
  }
  return [];
}

/** Return the visible multiples of an increment, counted from an origin; at most a hundred. */
export function multiples([low, high]: Reach, increment: number, origin = 0): number[] {
  const first = Math.ceil((low - origin) / increment - 1e-9);
  const found: number[] = [];
  for (let place = 0; place < 100; place += 1) {
    const at = origin + (first + place) * increment;
    if (!(at <= high + increment * 1e-9)) break;
    if (at !== found[found.length - 1]) found.push(at);
  }
  return found;
}
