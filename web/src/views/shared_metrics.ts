/** The metrics that several runs have in common. */

import type { Names } from "../api.ts";

/** Return the metrics of all runs, those that most of them have first; then as the first run orders them. */
export function shared(all: Names[]): { name: string; unit: string; help: string; runs: number }[] {
  const found = new Map<string, { name: string; unit: string; help: string; runs: number; important: boolean; place: number }>();
  for (const names of all) {
    for (const metric of names.metrics) {
      if (metric.source === "own" || metric.source === "machine") continue;
      const known = found.get(metric.name);
      if (known) known.runs += 1;
      else found.set(metric.name, { name: metric.name, unit: metric.unit, help: metric.help, runs: 1, important: metric.important, place: found.size });
    }
  }
  const most = (metric: { runs: number }): number => (metric.runs > 1 || all.length === 1 ? 0 : 1);
  return [...found.values()].sort((one, other) => most(one) - most(other) || Number(other.important) - Number(one.important) || one.place - other.place);
}
