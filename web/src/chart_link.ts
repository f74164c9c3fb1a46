/** State that the charts of a page share: the cursor, the visible range, and the whole range. */

export type Unit = "step" | "time";
export type Range = readonly [number, number];

/** Cursor and range of a group of charts. `x` is in the unit of their axis: steps or Unix seconds. */
export class ChartLink {
  /** Unit of x. */
  unit: Unit = "step";
  /** Converts x from one unit to the other; null where that is unknown. */
  convert: (x: number, from: Unit) => number | null = () => null;
  cursor: number | null = null;
  range: Range | null = null;
  /** From the first to the last x of all charts. */
  whole: Range | null = null;
  private cursorListeners = new Set<(x: number | null) => void>();
  private rangeListeners = new Set<(range: Range | null) => void>();
  private planned = false;
  /** Range to show as soon as it can be converted to the unit of the axis. */
  private wish: Zoom | null = null;

  /** Add a listener to the cursor; returns a function that removes it. */
  onCursor(listener: (x: number | null) => void): () => void {
    this.cursorListeners.add(listener);
    return () => this.cursorListeners.delete(listener);
  }

  /** Add a listener to the visible range; returns a function that removes it. */
  onRange(listener: (range: Range | null) => void): () => void {
    this.rangeListeners.add(listener);
    return () => this.rangeListeners.delete(listener);
  }

  setCursor(x: number | null): void {
    if (x === this.cursor) return;
    this.cursor = x;
    for (const listener of this.cursorListeners) listener(x);
  }

  /** Set the visible range; null shows everything. */
  setRange(range: Range | null): void {
    this.wish = null;
    if (same(range, this.range)) return;
    this.range = range;
    for (const listener of this.rangeListeners) listener(range);
  }

  /** Return the range that all charts show. */
  view(): Range | null {
    return this.range ?? this.whole;
  }

  /** Extend the whole range to include data from `first` to `last`. */
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

  /** Change the unit; the visible range is converted as soon as the clock of the run is known. */
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

  /** Show the range that waits for the clock of the run, if the clock is known now. */
  showPending(): void {
    const range = this.wish && this.turned(this.wish);
    if (range) this.setRange(range);
  }

  /** Return a range in the unit of the axis; null if that is unknown. */
  private turned({ unit, range }: Zoom): Range | null {
    if (unit === this.unit) return range;
    const [one, other] = range.map((x) => this.convert(x, unit));
    // a later attempt may go back, so that a period can end at an earlier step than it began
    return typeof one === "number" && typeof other === "number" && one !== other
      ? [Math.min(one, other), Math.max(one, other)]
      : null;
  }

  /** Zoom by a factor around the cursor or the center, and move by a share of the width. */
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

/** Largest step that is exact, and largest time that is a date. */
const FARTHEST: Record<Unit, number> = { step: 2 ** 53, time: 8.64e12 };

/** Read the parameter `zoom` of an address, such as `step:100:900`; null if it is missing. Times are Unix seconds. */
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

/** Return the value of the parameter `zoom`; null if everything is visible. */
export function zoomText(unit: Unit, range: Range | null): string | null {
  const short = (x: number): string =>
    String(unit === "step" ? Math.round(x * 100) / 100 : Math.round(x * 1000) / 1000);
  return range ? `${unit}:${short(range[0])}:${short(range[1])}` : null;
}
