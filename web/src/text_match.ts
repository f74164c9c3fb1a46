/** Search by words in any order, by letters with gaps, or by a regular expression, with or without slashes. */

export interface Matcher {
  /** Score of a text: higher is better, negative is no match. */
  score(text: string): number;
  /** Error of an invalid pattern; "" if it is valid. */
  problem: string;
}

const EVERYTHING: Matcher = { score: () => 0, problem: "" };
const LONGEST = 200;
/** Characters of regular expressions that names of metrics rarely have; many names have a dot or a hyphen. */
const SPECIAL = /[\\^$*+?()[\]{}|]/;

/** Return the matcher of a query. */
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
      // an incomplete pattern, or text that only looks like one, is matched by its letters
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

/** Score letters in order with gaps: contiguous is best, then the start of a word, then few gaps. */
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
