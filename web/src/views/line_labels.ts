/** Short names for the lines of one chart. */

const KINDS: Record<string, string> = { gpu: "GPU", process: "rank" };

/** Return short labels for the lines of one chart: the words in which their names differ. */
export function labels(names: string[]): Map<string, string> {
  const split = names.map((name) => name.split("/"));
  const found = new Map<string, string>();
  if (names.length === 1) return found.set(names[0] ?? "", (split[0]?.at(-1) ?? "").replaceAll("_", " "));
  const own = split.map((words) =>
    words
      .filter((word, at) => !split.every((others) => others[at] === word))
      .join("_")
      .split("_"),
  );
  const ends = common(own);
  names.forEach((name, place) => {
    const words = own[place] ?? [];
    const text = words.slice(0, words.length - ends).join(" ");
    const kind = split[place]?.[0] ?? "";
    found.set(name, /^\d+$/.test(text) ? `${KINDS[kind] ?? kind} ${text}` : text || name);
  });
  return found;
}

/** Return the number of words that all names share at the end; each name keeps at least one word. */
function common(all: string[][]): number {
  const shortest = Math.min(...all.map((words) => words.length));
  let count = 0;
  while (count < shortest - 1 && new Set(all.map((words) => words.at(-1 - count))).size === 1) count += 1;
  return count;
}
