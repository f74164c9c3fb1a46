/** The axis of a metric, from its kind. */

import type { MetricRow } from "./api.ts";

/** Durations start at 0, shares of a machine range from 0 to 1, so that small moves look small. */
export function axisOf(metric: MetricRow): { zero?: boolean; most?: number } {
  if (metric.kind === "duration") return { zero: true };
  return metric.source === "machine" && metric.unit === "ratio" ? { zero: true, most: 1 } : {};
}
