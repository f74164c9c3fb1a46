/** What the kind of a metric says about its axis. */

import type { Metric } from "./api.ts";

/** Durations begin at 0; shares of a machine go from 0 to 1: small moves near the top are no mountains. */
export function axisOf(metric: Metric): { zero?: boolean; most?: number } {
  if (metric.kind === "duration") return { zero: true };
  return metric.source === "machine" && metric.unit === "ratio" ? { zero: true, most: 1 } : {};
}
