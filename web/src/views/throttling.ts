/** Why a GPU's clock is held down. */

/** Return why a GPU's clock is held down, in words; empty if it is not. */
export function throttled(metrics: Record<string, number | null>): string {
  const reasons = Object.entries(metrics)
    .filter(([name, on]) => name.startsWith("throttle_") && on !== null && on > 0)
    .map(([name]) => name.slice("throttle_".length).replaceAll("_", " "));
  return reasons.length ? `held back: ${reasons.join(", ")}` : "";
}
