/** Find by typing: words in any order, letters with gaps, or a regular expression, with or without slashes around it. */

export interface Matcher {
  /** How well a text fits; negative if not at all. The higher the better. */
  score(text: string): number;
  /** Why the pattern is none; "" if it is fine. */
  problem: string;
}

const EVERYTHING: Matcher = { score: () => 0, problem: "" };
const LONGEST = 200;
/** What names of metrics hardly have and regular expressions do; a dot or a hyphen is in many names. */
const SPECIAL = /[\\^$*+?()[\]{}|]/;

/** Return what finds a query. */
export function matcher(query: string): Matcher {
  const text = query.trim().slice(0, LONGEST);
  if (!text) return EVERYTHING;
  const pattern = /^\/(.+?)\/?$/.exec(text);
  if (pattern) return byPattern(pattern[1] ?? "");
  const typed = SPECIAL.test(text) ? byPattern(text) : null;
  const words = text.toLowerCase().split(/\s+/);
  return {
    problem: "",
    score: (candidate) => {
      // a pattern that is not whole yet, or only looks like one, is found by its letters
      if (typed && !typed.problem && typed.score(candidate) >= 0) return 1;
      const lower = candidate.toLowerCase();
      let sum = 0;
      for (const word of words) {
        const one = fuzzy(lower, word);
        if (one < 0) return -1;
        sum += one;
      }
      return sum;
    },
  };
}

function byPattern(source: string): Matcher {
  try {
    const pattern = new RegExp(source, "i");
    return { problem: "", score: (text) => (pattern.test(text.slice(0, LONGEST)) ? 1 : -1) };
  } catch (error) {
    return { problem: error instanceof Error ? error.message : "not a regular expression", score: () => 0 };
  }
}

/** Score letters in order with gaps: a piece in one is best, at the begin of a word better, tight better than wide. */
export function fuzzy(text: string, word: string): number {
  const at = text.indexOf(word);
  if (at >= 0) return 1000 - Math.min(at, 400) + (at === 0 || /[\W_]/.test(text[at - 1] ?? "") ? 500 : 0);
  let place = -1;
  let gaps = 0;
  for (const letter of word) {
    const next = text.indexOf(letter, place + 1);
    if (next < 0) return -1;
    if (place >= 0) gaps += next - place - 1;
    place = next;
  }
  return gaps > 3 * word.length ? -1 : Math.max(0, 200 - 10 * gaps);
}
