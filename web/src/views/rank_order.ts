/** The order of the rows of a rank map: the worst first, by rank, or in groups of a node or a coordinate. */

import type { RankHeat, ShownRank } from "../api.ts";

export interface RankGroup {
  /** Shown beside the rows; empty for ranks without groups. */
  label: string;
  ranks: number[];
  /** Number of late ranks. */
  late: number;
}

/** A rank was late for a while if it was so by this share of a step, on average over so many buckets of the map. */
const [NOTABLE, BUCKETS] = [0.05, 3];

/** Return the ranks that were late for a while in the steps that a map shows. */
export function lateForAWhile(map: RankHeat): Set<number> {
  const found = new Set<number>();
  if (!map.is_difference) return found;
  map.ranks.forEach((rank, at) => {
    const shares = (map.values[at] ?? []).map((late, bucket) => (late ?? 0) / (map.usual[bucket] || Infinity));
    let sum = 0;
    shares.forEach((one, bucket) => {
      sum += one - (shares[bucket - BUCKETS] ?? 0);
      if (sum >= NOTABLE * BUCKETS) found.add(rank);
    });
  });
  return found;
}

export const WORST = "worst";
export const BY_RANK = "rank";
const UNKNOWN = "unknown";

/** Return the ranks in groups; `rows` come worst first. Groups are in the order of their lowest rank. */
export function grouped(rows: readonly ShownRank[], by: string): RankGroup[] {
  if (by === WORST) return [{ label: "", ranks: rows.map((row) => row.rank), late: lateIn(rows) }];
  const sorted = [...rows].sort((one, other) => one.rank - other.rank);
  if (by === BY_RANK) return [{ label: "", ranks: sorted.map((row) => row.rank), late: lateIn(rows) }];
  const groups = new Map<string, ShownRank[]>();
  for (const row of sorted) {
    const key = placeOf(row, by);
    const own = groups.get(key);
    if (own) own.push(row);
    else groups.set(key, [row]);
  }
  const found = [...groups].map(([label, own]) => ({ label, ranks: own.map((row) => row.rank), late: lateIn(own) }));
  return by === "node" ? found : found.sort((one, other) => ordinal(one.label) - ordinal(other.label));
}

/** Return the group of a rank. */
export function placeOf(row: ShownRank, by: string): string {
  if (by === "node") return row.host || UNKNOWN;
  const place = row.coordinates[by];
  return place === undefined ? UNKNOWN : `${by} ${place}`;
}

function ordinal(label: string): number {
  return label === UNKNOWN ? Infinity : Number(label.split(" ").at(-1));
}

function lateIn(rows: readonly ShownRank[]): number {
  return rows.filter((row) => row.is_late).length;
}

/** Return the coordinates of a rank as short words: d3 t1 p0. */
export function coordinates(row: ShownRank): string {
  return Object.entries(row.coordinates)
    .map(([name, place]) => `${name.slice(0, 1)}${place}`)
    .join(" ");
}
