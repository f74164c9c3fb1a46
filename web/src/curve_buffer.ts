/** One curve in memory: fetched, extended by live rows, thinned out when it gets long. */

import type { Columns, CurveHead } from "./binary.ts";

const NAMES = ["step", "time", "mean", "min", "max", "last", "minStep", "maxStep", "count", "bad"] as const;

/** A growing curve of bounded length; its memory is allocated once, and `columns()` returns views of it. */
export class CurveBuffer {
  readonly name: string;
  /** Below 0: not of one rank. */
  readonly rank: number;
  /** Whether the server has folded all ranks into it. */
  readonly folded: boolean;
  readonly attempt: number;
  readonly run: string;
  /** Number of recorded points that it represents. */
  points: number;
  length: number;
  private seq: number;
  private store: Columns;
  /** Points of a full bucket: new rows go into the last bucket until it is full. */
  private grain: number;

  constructor(head: Pick<CurveHead, "run" | "name" | "rank" | "attempt" | "points" | "seq">, columns: Columns) {
    ({ name: this.name, attempt: this.attempt, run: this.run, points: this.points, seq: this.seq } = head);
    this.folded = head.rank === null;
    this.rank = head.rank ?? -1;
    this.store = columns;
    this.length = columns.step.length;
    this.grain = this.length > 1 ? Math.floor(this.points / this.length) : 1;
  }

  /** Return all columns without a copy. */
  columns(): Columns {
    const result = {} as Columns;
    for (const name of NAMES) result[name] = this.store[name].subarray(0, this.length);
    return result;
  }

  /** Return one column without a copy. */
  column(name: keyof Columns): Float64Array {
    return this.store[name].subarray(0, this.length);
  }

  /** Whether its points belong to steps. */
  get stepped(): boolean {
    return this.length > 0 && Number.isFinite(this.store.step[0]);
  }

  /** Append a row of a live frame; returns false for a duplicate. Beyond `most` buckets neighbors are merged. */
  append(from: Columns, place: number, seq: number, most = Infinity): boolean {
    if (seq <= this.seq) return false;
    const many = from.count[place] ?? 1;
    if (this.length >= this.store.step.length) this.grow(most);
    for (const name of NAMES) this.store[name][this.length] = from[name][place] ?? NaN;
    if (this.fits(many)) merge(this.store, this.length - 1, this.length, this.store, this.length - 1);
    else this.length += 1;
    this.points += many;
    this.seq = seq;
    if (this.length > most) this.thin(Math.ceil((most * 2) / 3));
    return true;
  }

  /** Return whether so many points fit into the last bucket; never where x goes back. */
  private fits(many: number): boolean {
    const { count, time } = this.store;
    const last = this.length - 1;
    return last > 0 && (count[last] ?? 0) + many <= this.grain && (time[this.length] ?? 0) >= (time[last] ?? 0);
  }

  private grow(most: number): void {
    const room = Math.max(this.length + 1, Math.min(Math.max(64, this.length * 2), most + 1));
    const fresh = {} as Columns;
    for (const name of NAMES) {
      fresh[name] = new Float64Array(room);
      fresh[name].set(this.store[name].subarray(0, this.length));
    }
    this.store = fresh;
  }

  /** Merge neighbors in place until at most `most` are left; extremes and non-finite points are kept. */
  thin(most: number): void {
    while (this.length > Math.max(1, most)) {
      const size = Math.ceil(this.length / 2);
      for (let place = 0; place < size; place += 1)
        merge(this.store, 2 * place, Math.min(2 * place + 1, this.length - 1), this.store, place);
      this.length = size;
      this.grain *= 2;
    }
  }
}

/** Merge two buckets, the later one second; merging a bucket with itself returns it. */
function merge(from: Columns, one: number, other: number, to: Columns, place: number): void {
  const get = (column: Float64Array, at: number): number => column[at] ?? NaN;
  const [left, right] = [one, other].map((at) => Math.max(0, get(from.count, at) - get(from.bad, at))) as [
    number,
    number,
  ];
  const alone = one === other;
  const low = !alone && right > 0 && !(get(from.min, one) <= get(from.min, other)) ? other : one;
  const high = !alone && right > 0 && !(get(from.max, one) >= get(from.max, other)) ? other : one;
  const made: Record<(typeof NAMES)[number], number> = {
    step: get(from.step, other),
    time: get(from.time, other),
    last: get(from.last, other),
    mean: weighted(get(from.mean, one), left, get(from.mean, other), alone ? 0 : right),
    min: get(from.min, low),
    minStep: get(from.minStep, low),
    max: get(from.max, high),
    maxStep: get(from.maxStep, high),
    count: get(from.count, one) + (alone ? 0 : get(from.count, other)),
    bad: get(from.bad, one) + (alone ? 0 : get(from.bad, other)),
  };
  for (const name of NAMES) to[name][place] = made[name];
}

function weighted(one: number, left: number, other: number, right: number): number {
  if (!(left > 0)) return right > 0 ? other : NaN;
  if (!(right > 0)) return one;
  return (one * left + other * right) / (left + right);
}
