/** Events of a run as marks on its charts. */

import type { RunEvent } from "./api.ts";
import type { CurveBuffer } from "./curve_buffer.ts";
import type { Marker } from "./panel.ts";

const KINDS: Record<string, Marker["kind"]> = {
  alert: "alert",
  stall: "alert",
  exception: "alert",
  oom: "alert",
  gpu_lost: "alert",
  checkpoint: "checkpoint",
  epoch: "epoch",
  evaluation: "event",
  attempt: "attempt",
  text: "event",
  clock_jump: "event",
};

/** Return the marks of events: kinds that matter for a chart, and alerts only where they start to fire. */
export function markersOf(events: readonly RunEvent[]): Marker[] {
  return events.flatMap((event) => {
    const kind = KINDS[event.kind];
    if (!kind) return [];
    if (event.kind === "alert" && event.data.state !== "firing") return [];
    return [{ step: event.step, time: event.time, text: event.text || event.kind, kind }];
  });
}

const MOST = 30;

/** Return the starts of epochs in each attempt, from the metric `epoch`; only every 2nd, 5th, 10th ... of many. */
export function epochMarkers(curves: readonly CurveBuffer[]): Marker[] {
  const byAttempt = new Map<number, CurveBuffer>();
  for (const one of curves) if (one.length > 1 && !byAttempt.has(one.attempt)) byAttempt.set(one.attempt, one);
  const last = Math.max(0, ...[...byAttempt.values()].map((held) => Math.floor(held.column("max").at(-1) ?? 0)));
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((many) => last / many <= MOST) ?? Infinity;
  return [...byAttempt.values()].flatMap((held) => epochsOf(held, every));
}

function epochsOf(held: CurveBuffer, every: number): Marker[] {
  const { step, time, max } = held.columns();
  const found: Marker[] = [];
  let seen = Math.floor(max[0] ?? 0);
  max.forEach((value, place) => {
    const epoch = Math.floor(value);
    if (epoch > seen && Math.floor(epoch / every) > Math.floor(seen / every))
      found.push({ step: step[place] ?? null, time: time[place] ?? null, text: `epoch ${epoch}`, kind: "epoch" });
    if (epoch > seen) seen = epoch;
  });
  return found;
}
