/** The time of each step over all attempts of a run, to convert between the axes. */

import { placeOf } from "./chart_line.ts";

export interface Times {
  step: Float64Array;
  time: Float64Array;
}

/** Steps and times of each attempt, in order. A later attempt may repeat steps of an earlier one. */
export class RunClock {
  private readonly attempts: Times[];

  constructor(attempts: Times[]) {
    this.attempts = attempts
      .filter((one) => one.step.length > 0)
      .sort((one, other) => (one.time[0] ?? 0) - (other.time[0] ?? 0));
  }

  /** Return the step at a time; between two attempts, the last step of the earlier. */
  stepAt(time: number): number | null {
    const own = this.attempts.findLast((one) => (one.time[0] ?? 0) <= time) ?? this.attempts[0];
    return own ? across(own.time, own.step, time) : null;
  }

  /** Return the time of a step in the last attempt that reached it. */
  timeAt(step: number): number | null {
    const own = this.attempts.findLast(
      (one) => (one.step[0] ?? 0) <= step && step <= (one.step[one.step.length - 1] ?? 0),
    );
    const near = own ?? this.attempts.findLast((one) => (one.step[0] ?? 0) <= step) ?? this.attempts[0];
    return near ? across(near.step, near.time, step) : null;
  }
}

/** Convert a position on one axis to the other. */
function across(from: Float64Array, to: Float64Array, at: number): number | null {
  if (!from.length) return null;
  const place = placeOf(from, at);
  if (place < 0) return to[0] ?? null;
  const [x0, y0] = [from[place] ?? 0, to[place] ?? 0];
  const [x1, y1] = [from[place + 1], to[place + 1]];
  if (x1 === undefined || y1 === undefined) return y0;
  return x1 === x0 ? y0 : y0 + ((at - x0) / (x1 - x0)) * (y1 - y0);
}
