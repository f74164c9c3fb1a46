/** Words of a comparison. */

/** Return the class of a verdict: good, bad, or neither. */
export function tone(verdict: string): string {
  if (/^(better|faster|improved|lower is better)/.test(verdict)) return "good";
  return /^(worse|slower|regress)/.test(verdict) ? "bad" : "even";
}

/** Return a quantity in words: "loss@1999" is "loss at step 1999", "loss@50%" is "loss at 50 % of the run". */
export function quantity(name: string): string {
  return name
    .replace(/@(\d+)$/, " at step $1")
    .replace(/@([\d.]+)s$/, " after $1\u202fs")
    .replace(/@([\d.]+)%$/, " at $1\u202f% of the run")
    .replace(/@end$/, " at the end");
}
