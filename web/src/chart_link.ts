/** What charts of one page share: the moment under the cursor, the range that all show, and the whole there is. */

export type Unit = "step" | "time";
export type Range = readonly [number, number];

/** Cursor and range of a group of charts. `x` is in the unit of the group's axis: steps, or seconds since 1970. */
export class ChartLink {
  /** What x counts. */
  unit: Unit = "step";
  /** Turns an x of one unit into the same moment in the other; null where nobody knows. */
  convert: (x: number, from: Unit) => number | null = () => null;
  cursor: number | null = null;
  range: Range | null = null;
  /** From the first to the last x of all charts. */
  whole: Range | null = null;
  private cursorListeners = new Set<(x: number | null) => void>();
  private rangeListeners = new Set<(range: Range | null) => void>();
  private planned = false;
  /** What to show as soon as somebody knows where it is in the unit of the axis. */
  private wish: Zoom | null = null;

  /** Call back when the cursor moves; returns how to stop. */
  onCursor(listener: (x: number | null) => void): () => void {
    this.cursorListeners.add(listener);
    return () => this.cursorListeners.delete(listener);
  }

  /** Call back when what is in view changes; returns how to stop. */
  onRange(listener: (range: Range | null) => void): () => void {
    this.rangeListeners.add(listener);
    return () => this.rangeListeners.delete(listener);
  }

  setCursor(x: number | null): void {
    if (x === this.cursor) return;
    this.cursor = x;
    for (const listener of this.cursorListeners) listener(x);
  }

  /** Zoom; null shows everything. */
  setRange(range: Range | null): void {
    this.wish = null;
    if (same(range, this.range)) return;
    this.range = range;
    for (const listener of this.rangeListeners) listener(range);
  }

  /** What all charts show now. */
  view(): Range | null {
    return this.range ?? this.whole;
  }

  /** A chart has data from `first` to `last`: the whole is at least that. */
  cover(first: number, last: number): void {
    if (!(first <= last)) return;
    const [from, to] = this.whole ?? [first, last];
    if (this.whole && first >= from && last <= to) return;
    this.whole = [Math.min(from, first), Math.max(to, last)];
    if (this.range || this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      if (!this.range) for (const listener of this.rangeListeners) listener(null);
    });
  }

  /** Count in another unit; the range in view stays the same moments, as soon as the clock of the run is known. */
  setUnit(unit: Unit): void {
    if (unit === this.unit) return;
    const wish = this.wish ?? (this.range && { unit: this.unit, range: this.range });
    this.unit = unit;
    this.whole = null;
    this.cursor = null;
    this.range = wish && this.turned(wish);
    this.wish = this.range ? null : wish;
    for (const listener of this.rangeListeners) listener(this.range);
  }

  /** Whether a range waits for the clock of the run. */
  get waits(): boolean {
    return this.wish !== null;
  }

  /** The clock of the run may be known now: show the range that waits for it. */
  settle(): void {
    const range = this.wish && this.turned(this.wish);
    if (range) this.setRange(range);
  }

  /** Return a range in the unit of the axis; null where nobody knows. */
  private turned({ unit, range }: Zoom): Range | null {
    if (unit === this.unit) return range;
    const [one, other] = range.map((x) => this.convert(x, unit));
    // a later attempt may have gone back, so that the end of a period is at an earlier step than its begin
    return typeof one === "number" && typeof other === "number" && one !== other
      ? [Math.min(one, other), Math.max(one, other)]
      : null;
  }

  /** Zoom by a factor around the cursor or the middle, and move by a share of the width. */
  scale(factor: number, shift: number): void {
    const now = this.view();
    if (!now || !this.whole) return;
    const [from, to] = now;
    const width = (to - from) * factor;
    const middle = factor !== 1 && this.cursor !== null ? this.cursor : (from + to) / 2;
    const start = middle - width * ((middle - from) / (to - from || 1)) + shift * (to - from);
    this.setRange(start <= this.whole[0] && start + width >= this.whole[1] ? null : [start, start + width]);
  }
}

function same(one: Range | null, other: Range | null): boolean {
  return one === other || (one !== null && other !== null && one[0] === other[0] && one[1] === other[1]);
}

export interface Zoom {
  unit: Unit;
  range: Range;
}

/** Beyond these a step is no whole number any more, and a time no date. */
const FARTHEST: Record<Unit, number> = { step: 2 ** 53, time: 8.64e12 };

/** Read the parameter `zoom` of an address, such as `step:100:900`; null if there is none. Times are seconds since 1970. */
export function zoomOf(params: URLSearchParams): Zoom | null {
  const [unit, from, to] = (params.get("zoom") ?? "").split(":");
  const range = [Number(from), Number(to)] as const;
  if (
    (unit !== "step" && unit !== "time") ||
    !range.every((x) => Math.abs(x) <= FARTHEST[unit]) ||
    range[1] <= range[0]
  )
    return null;
  return { unit, range };
}

/** Return the value of the parameter `zoom`; null where everything is in view. */
export function zoomText(unit: Unit, range: Range | null): string | null {
  const short = (x: number): string =>
    String(unit === "step" ? Math.round(x * 100) / 100 : Math.round(x * 1000) / 1000);
  return range ? `${unit}:${short(range[0])}:${short(range[1])}` : null;
}
