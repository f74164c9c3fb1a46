/** The curves of one run, or of several to compare: fetched for the visible charts, extended by live rows. */

import { ApiError, messages, reason } from "./api.ts";
import { curvesOf, type Frame } from "./binary.ts";
import type { ChartLink, Range, Unit } from "./chart_link.ts";
import { CurveBuffer } from "./curve_buffer.ts";
import type { CurveId, Live } from "./live.ts";
import { RunClock } from "./run_clock.ts";

export interface Curve {
  state: "loading" | "ready" | "absent" | "error";
  /** The whole metric in coarse buckets, all ranks and attempts. */
  whole: CurveBuffer[];
  /** The visible range in finer buckets; null while it is loading (draw `whole` until then). */
  zoomed: CurveBuffer[] | null;
  text: string;
}

interface Wanted {
  listeners: Set<() => void>;
  curve: Curve;
  points: number;
  /** Range of `zoomed`. */
  zoom: string;
  /** Time at which folded curves were fetched: live rows cannot extend them. */
  fetched: number;
}

export interface Options {
  /** One curve per attempt over all ranks, computed by the server: for more ranks than are worth fetching. */
  fold?: boolean;
  /** With `fold`: also the curve of the rank that is farthest from the mean. */
  worst?: boolean;
  ranks?: number[] | undefined;
  attempts?: number[] | undefined;
}

const BATCH = 32;
const FOLD_MS = 2000;
const MARGIN = 0.05;

/** Fetches many curves in few requests, only for visible charts. */
export class Curves {
  axis: Unit = "step";
  range: Range | null = null;
  options: Options = {};
  /** Start of the run in Unix seconds: 0 on the axis "time". */
  origin: number | null = null;
  /** Start of each of several runs; if set, times of ranges count from the start of each run. */
  starts: ReadonlyMap<string, number> | null = null;
  private wanted = new Map<string, Wanted>();
  private queue = new Set<string>();
  private planned = 0;
  private stops: (() => void)[] = [];
  private abort = new AbortController();
  /** Cancels the request of the current zoom when the zoom changes. */
  private zoomAbort = new AbortController();

  constructor(
    readonly runs: string[],
    live: Live | null = null,
    private readonly most = 64,
    /** Source of the responses; a report contains them. */
    private readonly from: typeof messages = messages,
  ) {
    if (!live) return;
    this.stops.push(
      live.listen({
        frame: (frame, curves) => this.grow(frame, curves),
        reset: () => this.refresh(),
      }),
    );
  }

  /** Fetch a metric while a chart shows it, and call `changed` after every change. Returns a function to stop. */
  watch(name: string, points: number, changed: () => void): () => void {
    let wanted = this.wanted.get(name);
    if (!wanted) {
      wanted = {
        listeners: new Set(),
        curve: { state: "loading", whole: [], zoomed: null, text: "" },
        points,
        zoom: "",
        fetched: 0,
      };
      this.wanted.set(name, wanted);
      this.ask(name);
    }
    wanted.points = Math.max(points, wanted.points);
    wanted.listeners.add(changed);
    if (wanted.curve.state === "ready" && this.zoomKey() !== wanted.zoom) this.ask(name);
    return () => {
      wanted.listeners.delete(changed);
    };
  }

  /** Return the curve of a metric, as far as it is loaded. */
  get(name: string): Curve | null {
    return this.wanted.get(name)?.curve ?? null;
  }

  /** Follow the visible range of a link. Returns a function that stops it. */
  follow(link: ChartLink): () => void {
    const zoom = (): void => this.setRange(link.unit, link.range);
    zoom();
    return link.onRange(zoom);
  }

  /** Zoom all curves: visible ones are fetched again in fine buckets, the coarse curves stay. */
  setRange(axis: Unit, range: Range | null): void {
    if (axis === this.axis && range === this.range) return;
    this.axis = axis;
    this.range = range;
    this.zoomAbort.abort();
    this.zoomAbort = new AbortController();
    for (const [name, wanted] of this.wanted) {
      if (wanted.zoom !== this.zoomKey()) wanted.curve.zoomed = null;
      if (wanted.listeners.size && wanted.zoom !== this.zoomKey()) this.ask(name);
    }
  }

  /** Choose ranks, attempts and folding; everything is fetched again. */
  setOptions(options: Options): void {
    if (JSON.stringify(options) === JSON.stringify(this.options)) return;
    this.options = options;
    this.refresh();
  }

  /** Fetch the visible curves again, and drop the others. */
  refresh(): void {
    for (const [name, wanted] of this.wanted) {
      if (!wanted.listeners.size) this.wanted.delete(name);
      else {
        wanted.zoom = "";
        wanted.fetched = 0;
        this.ask(name);
      }
    }
  }

  stop(): void {
    this.abort.abort();
    this.zoomAbort.abort();
    clearTimeout(this.planned);
    for (const stop of this.stops) stop();
  }

  /** Return the clock of a run, which converts steps to times and back; of several runs, name one. */
  clock(run?: string): RunClock | null {
    const many = this.runs.length > 1;
    if (many && run === undefined) return null;
    const best = new Map<number, CurveBuffer>();
    for (const { curve } of this.wanted.values()) {
      for (const held of curve.whole) {
        const known = best.get(held.attempt);
        if (held.stepped && (!many || held.run === run) && (!known || held.points > known.points))
          best.set(held.attempt, held);
      }
    }
    return best.size
      ? new RunClock([...best.values()].map((held) => ({ step: held.column("step"), time: held.column("time") })))
      : null;
  }

  private zoomKey(): string {
    return this.range ? `${this.axis}:${this.range[0]}:${this.range[1]}` : "";
  }

  private ask(name: string): void {
    this.queue.add(name);
    if (!this.planned) this.planned = window.setTimeout(() => void this.fetch(), 0);
  }

  private async fetch(): Promise<void> {
    const names = [...this.queue];
    this.queue.clear();
    this.planned = 0;
    const fresh = names.filter((name) => !this.wanted.get(name)?.fetched);
    await Promise.all(chunks(fresh, Math.min(BATCH, this.most)).map((some) => this.load(some, null)));
    const zoom = this.range;
    if (zoom) {
      const unzoomed = names.filter((name) => this.wanted.get(name)?.zoom !== this.zoomKey());
      await Promise.all(chunks(unzoomed, Math.min(BATCH, this.most)).map((some) => this.load(some, zoom)));
    } else for (const name of names) this.unzoom(name);
  }

  private unzoom(name: string): void {
    const wanted = this.wanted.get(name);
    if (!wanted || (wanted.zoom === "" && !wanted.curve.zoomed)) return;
    wanted.zoom = "";
    wanted.curve.zoomed = null;
    this.changed(wanted);
  }

  private async load(names: string[], zoom: Range | null): Promise<void> {
    const key = this.zoomKey();
    const points = Math.max(...names.map((name) => this.wanted.get(name)?.points ?? 100));
    const { signal } = zoom ? this.zoomAbort : this.abort;
    try {
      const answers = await Promise.all(
        this.questions(zoom).map((asked) =>
          this.from(
            "/api/series",
            {
              ...asked,
              name: names,
              points,
              fold: this.options.fold ? (this.options.worst ? "worst" : "ranks") : null,
              rank: this.options.ranks,
              attempt: this.options.attempts,
            },
            signal,
          ),
        ),
      );
      const found = answers.flatMap((answer) => (answer ?? []).flatMap(curvesOf));
      this.fill(
        names,
        found.map(({ head, columns }) => new CurveBuffer(head, columns)),
        zoom ? key : null,
      );
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      if (error instanceof ApiError && error.status === 404) this.fill(names, [], zoom ? key : null);
      else this.fail(names, reason(error));
    }
  }

  /** Return the requests: runs and ranges; a range relative to the start of each run differs for each run. */
  private questions(zoom: Range | null): { run: string[]; axis?: Unit; from?: number; to?: number }[] {
    if (!zoom) return [{ run: this.runs }];
    const margin = (zoom[1] - zoom[0]) * MARGIN;
    const of = (run: string[], start: number) => ({
      run,
      axis: this.axis,
      from: start + zoom[0] - margin,
      to: start + zoom[1] + margin,
    });
    const { starts } = this;
    return starts && this.axis === "time"
      ? this.runs.map((run) => of([run], starts.get(run) ?? 0))
      : [of(this.runs, 0)];
  }

  private fill(names: string[], found: CurveBuffer[], zoom: string | null): void {
    if (zoom !== null && zoom !== this.zoomKey()) return; // the zoom has changed since
    for (const name of names) {
      const wanted = this.wanted.get(name);
      if (!wanted) continue;
      const own = found.filter((held) => held.name === name);
      if (zoom === null) {
        wanted.curve.whole = own;
        wanted.curve.state = own.length ? "ready" : "absent";
        wanted.curve.text = "";
        wanted.fetched = performance.now();
      } else {
        wanted.curve.zoomed = own;
        wanted.zoom = zoom;
      }
      this.changed(wanted);
    }
  }

  private fail(names: string[], text: string): void {
    for (const name of names) {
      const wanted = this.wanted.get(name);
      if (!wanted) continue;
      wanted.curve.text = text;
      if (!wanted.curve.whole.length) wanted.curve.state = "error";
      this.changed(wanted);
    }
  }

  private grow(frame: Frame, curves: ReadonlyMap<number, CurveId>): void {
    const touched = new Set<Wanted>();
    for (let place = 0; place < frame.header.n; place += 1) {
      const id = curves.get(frame.curve[place] ?? -1);
      const wanted = id && this.wanted.get(id.name);
      if (!id || !wanted?.fetched || wanted.curve.state === "error") continue;
      if (this.options.ranks && !this.options.ranks.includes(id.rank)) continue;
      if (this.options.attempts && !this.options.attempts.includes(id.attempt)) continue;
      if (this.options.fold) {
        if (performance.now() - wanted.fetched > FOLD_MS && wanted.listeners.size) {
          wanted.fetched = 0;
          this.ask(id.name);
        }
        continue;
      }
      if (this.extend(wanted, id, frame, place)) touched.add(wanted);
    }
    for (const wanted of touched) this.changed(wanted);
  }

  private extend(wanted: Wanted, id: CurveId, frame: Frame, place: number): boolean {
    const { curve } = wanted;
    const match = (held: CurveBuffer): boolean => held.rank === id.rank && held.attempt === id.attempt;
    let held = curve.whole.find(match);
    if (!held) {
      held = new CurveBuffer({ run: this.runs[0] ?? "", ...id, points: 0, seq: -1 }, empty());
      curve.whole.push(held);
      curve.state = "ready";
    }
    const most = 3 * wanted.points;
    const grown = held.append(frame.columns, place, frame.seq[place] ?? 0, most);
    const x = (this.axis === "step" ? frame.columns.step : frame.columns.time)[place] ?? NaN;
    if (grown && curve.zoomed && this.range && x <= this.range[1]) {
      curve.zoomed.find(match)?.append(frame.columns, place, frame.seq[place] ?? 0, most);
    }
    return grown;
  }

  private changed(wanted: Wanted): void {
    for (const listener of wanted.listeners) listener();
  }
}

function empty(): ConstructorParameters<typeof CurveBuffer>[1] {
  const none = (): Float64Array => new Float64Array(0);
  return {
    step: none(),
    time: none(),
    mean: none(),
    min: none(),
    max: none(),
    last: none(),
    minStep: none(),
    maxStep: none(),
    count: none(),
    bad: none(),
  };
}

function chunks<T>(all: T[], size: number): T[][] {
  const found: T[][] = [];
  for (let place = 0; place < all.length; place += size) found.push(all.slice(place, place + size));
  return found;
}
