/** Links to the console around a time. */

/** Return the parameters of the console around a time, of a rank if it has one. */
export function consoleAt(time: number, rank: number | null): URLSearchParams {
  const params = new URLSearchParams({ at: String(time) });
  if (rank !== null && rank >= 0) params.set("ranks", String(rank));
  return params;
}
