/** How far one number is from another, in words. */

import { ABSENT, number } from "../format.ts";

/** Return a difference as a signed percentage, or as a factor where that reads better. */
export function change(ratio: number | null): string {
  if (ratio === null || !Number.isFinite(ratio)) return ABSENT;
  if (Math.abs(ratio) >= 10) return `${number(ratio + 1, 2)}×`;
  const percent = ratio * 100;
  const text = Math.abs(percent).toFixed(Math.abs(percent) < 100 ? 1 : 0);
  return Number(text) === 0 ? "0\u202f%" : `${percent > 0 ? "+" : "−"}${text}\u202f%`;
}

/** Return the class of a verdict: good, bad, or neither. */
export function tone(verdict: string): string {
  if (/^(better|faster|improved|lower is better)/.test(verdict)) return "good";
  return /^(worse|slower|regress)/.test(verdict) ? "bad" : "even";
}

/** Return a quantity in words: "loss@1999" is the loss at step 1999, "loss@500s" that after 500 seconds, "loss@50%" that half way. */
export function quantity(name: string): string {
  return name
    .replace(/@(\d+)$/, " at step $1")
    .replace(/@([\d.]+)s$/, " after $1\u202fs")
    .replace(/@([\d.]+)%$/, " at $1\u202f% of the run")
    .replace(/@end$/, " at the end");
}
