/** The metrics that several runs have in common. */

import type { MetricRow, Metrics } from "../api.ts";

export interface Shared {
  name: string;
  unit: string;
  help: string;
  /** Number of runs that have it. */
  runs: number;
  /** Whether it measures speed, not quality. */
  time: boolean;
}

/** Return the metrics of all runs: common ones first, then in the order of the first run, counters last. */
export function shared(all: Metrics[]): Shared[] {
  const found = new Map<string, Shared & { important: boolean; place: number }>();
  for (const names of all) {
    for (const metric of names.metrics) {
      if (metric.source === "own" || metric.source === "machine") continue;
      const known = found.get(metric.name);
      if (known) known.runs += 1;
      else
        found.set(metric.name, {
          name: metric.name,
          unit: metric.unit,
          help: metric.help,
          runs: 1,
          time: isTime(metric),
          important: metric.important,
          place: found.size,
        });
    }
  }
  const most = (metric: Shared): number => (metric.runs > 1 || all.length === 1 ? 0 : 1);
  const counts = (metric: Shared): number => Number(COUNTER.test(metric.name));
  return [...found.values()].sort(
    (one, other) =>
      most(one) - most(other) ||
      counts(one) - counts(other) ||
      Number(other.important) - Number(one.important) ||
      one.place - other.place,
  );
}

/** Metrics that only count progress. */
const COUNTER = /(^|[/_.])(epochs?|(global_)?steps?|iterations?|samples|tokens)(_seen|_total)?$/i;

function isTime(metric: MetricRow): boolean {
  return (
    metric.source === "phase" ||
    metric.kind === "duration" ||
    metric.unit === "seconds" ||
    metric.unit.endsWith("/second")
  );
}
