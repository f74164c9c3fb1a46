/** Texts and links of a sink. */

import { count, duration } from "../format.ts";

/** Return an address if a browser may open it as a web page, else null. */
export function webLink(text: string): string | null {
  try {
    const { protocol, username, password, href } = new URL(text);
    return /^https?:$/.test(protocol) && !username && !password ? href : null;
  } catch {
    return null;
  }
}

/** Return how far a sink is behind: 1 234 rows, 5 min 3 s. */
export function behind(rows: number, seconds: number): string {
  return rows ? `${count(rows)} ${rows === 1 ? "row" : "rows"}, ${duration(seconds)}` : "nothing";
}
