/** Texts and links of a sink. */

import type { SinkRow } from "../api.ts";
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

/** Return how far a sink is behind: 1 234 rows, 5 min 3 s; nobody counts for one that is stopped. */
export function behind(sink: Pick<SinkRow, "state" | "behind_rows" | "behind_seconds">): string {
  const { behind_rows: rows, behind_seconds: seconds } = sink;
  if (sink.state === "stopped" && !rows) return "unknown";
  return rows ? `${count(rows)} ${rows === 1 ? "row" : "rows"}, ${duration(seconds)}` : "nothing";
}
