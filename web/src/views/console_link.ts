/** Links to the console around a time. */

/** Return the parameters of the console around a time, of a rank if it has one. */
export function consoleAt(time: number, rank: number | null): URLSearchParams {
  const params = new URLSearchParams({ at: String(time) });
  if (rank !== null && rank >= 0) params.set("ranks", String(rank));
  return params;
}

/** Return the parameters of the console around the end of a step of a rank. */
export function consoleOfStep(rank: number, step: number): URLSearchParams {
  return new URLSearchParams({ ranks: String(rank), step: String(step) });
}
