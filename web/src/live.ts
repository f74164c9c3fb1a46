/** The live poll of a page: new rows of all curves, and the status of the run. */

import { ApiError, ask, type Hello, type RunStatus, reason } from "./api.ts";
import { decode, type Frame, frameOf } from "./binary.ts";

export interface LiveListener {
  /** The status, at least after every change. */
  status?(status: RunStatus): void;
  /** New rows; `curves` maps their numbers to curves. */
  frame?(frame: Frame, curves: ReadonlyMap<number, CurveId>): void;
  /** The data of the page is too old: fetch it again. */
  reset?(): void;
  /** The connection failed, with the reason, or works again (""). */
  trouble?(text: string): void;
}

export interface CurveId {
  name: string;
  rank: number;
  attempt: number;
}

const SLOW = 5000;
const IDLE = 4;

/** Follows one run; pauses while the page is hidden, and slows down after the run has ended. */
export class Live {
  status: RunStatus | null = null;
  /** Time of the last response in milliseconds of this page's clock. */
  answered = 0;
  /** The server's clock minus this page's clock, in seconds. */
  skew = 0;
  /** Reason of the failed connection; "" if it works. */
  failed = "";
  /** The server responds that the run does not exist. */
  absent = false;
  private cursor: string | number | null = null;
  private curves = new Map<number, CurveId>();
  private listeners = new Set<LiveListener>();
  private timer = 0;
  private stopped = false;
  private waits = 0;
  private readonly wake = (): void => {
    if (!document.hidden) this.plan(0);
  };

  constructor(
    readonly run: string,
    private readonly interval: number,
  ) {
    document.addEventListener("visibilitychange", this.wake);
    this.plan(0);
  }

  /** Add a listener; returns a function that removes it. */
  listen(listener: LiveListener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Return the server's time in Unix seconds. */
  now(): number {
    return Date.now() / 1000 + this.skew;
  }

  stop(): void {
    this.stopped = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.wake);
  }

  private plan(delay: number): void {
    clearTimeout(this.timer);
    if (!this.stopped && !document.hidden) this.timer = window.setTimeout(() => void this.poll(), delay);
  }

  private async poll(): Promise<void> {
    const begun = performance.now();
    let next = this.interval * 1000;
    try {
      if (this.cursor === null) await this.start();
      else await this.follow(this.cursor);
      this.answered = performance.now();
      this.absent = false;
      this.trouble("");
      const over = this.status !== null && this.status.state !== "running";
      if (over) next = Math.min(SLOW, next * IDLE);
      this.waits = 0;
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) {
        this.cursor = null;
        this.notify((listener) => listener.reset?.());
        next = 0;
      } else {
        this.absent = error instanceof ApiError && error.status === 404;
        this.trouble(reason(error));
        this.waits = Math.min(this.waits + 1, 4);
        next = Math.min(SLOW, next * 2 ** this.waits);
      }
    }
    this.plan(Math.max(0, next - (performance.now() - begun)));
  }

  private async start(): Promise<void> {
    const answer = await ask("/api/live", { run: this.run });
    if (!answer) return;
    const start = (await answer.json()) as Hello;
    this.curves.clear();
    this.addCurves(start.curves);
    this.cursor = start.cursor;
    this.setStatus(start.status);
  }

  private async follow(since: string | number): Promise<void> {
    const answer = await ask("/api/live", { run: this.run, since });
    if (!answer) return;
    for (const message of decode(await answer.arrayBuffer())) {
      const frame = frameOf(message);
      this.addCurves(frame.header.new);
      this.cursor = frame.header.cursor;
      this.notify((listener) => listener.frame?.(frame, this.curves));
      this.setStatus(frame.header.status as RunStatus);
    }
  }

  private addCurves(rows: [number, string, number, number][]): void {
    for (const [id, name, rank, attempt] of rows) this.curves.set(id, { name, rank, attempt });
  }

  private setStatus(status: RunStatus): void {
    this.status = status;
    this.skew = status.now - Date.now() / 1000;
    this.notify((listener) => listener.status?.(status));
  }

  private trouble(text: string): void {
    if (text === this.failed) return;
    this.failed = text;
    this.notify((listener) => listener.trouble?.(text));
  }

  private notify(call: (listener: LiveListener) => void): void {
    for (const listener of [...this.listeners]) call(listener);
  }
}
