/** The run of the page, shared by all its views. */

import { type AlertRow, json, type Metrics, type RunEvent, type RunHead, type RunStatus } from "./api.ts";
import { CachedAnswer } from "./cached_answer.ts";
import { ChartLink } from "./chart_link.ts";
import { Curves } from "./curves.ts";
import { Live } from "./live.ts";

/** Milliseconds between two requests of the head if a view shows it, if not, and as a multiple of their duration. */
const [HEAD_MS, IDLE_HEAD_MS, HEAD_SHARE] = [3000, 30000, 10];

/** One run with its live connection. */
export class RunModel {
  readonly live: Live;
  readonly curves: Curves;
  readonly link = new ChartLink();
  readonly head: CachedAnswer<RunHead>;
  readonly names: CachedAnswer<Metrics>;
  readonly events: CachedAnswer<{ total: number; events: RunEvent[] }>;
  readonly alerts: CachedAnswer<{ alerts: AlertRow[] }>;
  /** Whether a view shows the whole head, not only the run's name. */
  attentive = false;
  private seen: RunStatus | null = null;
  private headAt = 0;
  private clockKept = false;

  constructor(
    readonly key: string,
    refresh: number,
  ) {
    this.live = new Live(key, refresh);
    this.curves = new Curves([key], this.live);
    this.head = new CachedAnswer(() => json("/api/run", { run: key }));
    this.names = new CachedAnswer(() => json("/api/names", { run: key }));
    this.events = new CachedAnswer(() => json("/api/events", { run: key, limit: 500 }));
    this.alerts = new CachedAnswer(() => json("/api/alerts", { run: key }));
    this.live.listen({ status: (status) => this.follow(status) });
    this.link.convert = (x, from) => {
      const clock = this.curves.clock();
      return (from === "step" ? clock?.timeAt(x) : clock?.stepAt(x)) ?? null;
    };
    this.curves.follow(this.link);
    this.head.listen(() => (this.curves.origin ??= this.head.value?.run.created ?? null));
    this.names.listen(() => this.keepClock());
  }

  /** Keep one curve of the training loaded: it gives the time of each step. */
  private keepClock(): void {
    const metrics = this.names.value?.metrics ?? [];
    const own = metrics.filter((metric) => metric.source === "training" || metric.source === "phase");
    const best = own.find((metric) => metric.name === "step_seconds") ?? own[0];
    if (this.clockKept || !best) return;
    this.clockKept = true;
    this.curves.watch(best.name, 400, () => this.link.showPending());
  }

  /** Load again what has changed by the status; the head, which is expensive, every few seconds. */
  private follow(status: RunStatus): void {
    const before = this.seen;
    this.seen = status;
    if (!before) return;
    if (status.names !== before.names) this.names.refresh();
    if (status.events !== before.events) {
      this.events.refresh();
      this.alerts.refresh();
    }
    const ended = status.state !== before.state;
    const moved = status.step !== before.step || status.heard !== before.heard;
    const pause = Math.max(this.attentive ? HEAD_MS : IDLE_HEAD_MS, HEAD_SHARE * this.head.took);
    if (ended || (moved && performance.now() - this.headAt > pause)) {
      this.headAt = performance.now();
      this.head.refresh();
    }
  }

  stop(): void {
    this.live.stop();
    this.curves.stop();
  }
}
