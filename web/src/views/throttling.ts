/** Reasons of GPU throttling. */

/** Return the reasons of throttling in words; "" if there is none. */
export function throttled(metrics: Record<string, number | null>): string {
  const reasons = Object.entries(metrics)
    .filter(([name, on]) => name.startsWith("throttle_") && on !== null && on > 0)
    .map(([name]) => name.slice("throttle_".length).replaceAll("_", " "));
  return reasons.length ? `throttled: ${reasons.join(", ")}` : "";
}
