/** The lines of consoles that the page holds: a window that grows at both ends. */

import { json, type PrintedLine, type PrintedLines } from "../api.ts";

export interface Filter {
  ranks: number[];
  level: string;
  pattern: string;
}

const [FIRST, MORE, MOST] = [1000, 1000, 100_000];

/** Parse ranks as in "0, 4-7"; at most 1024 of them. */
export function parseRanks(text: string): number[] {
  const found = new Set<number>();
  for (const part of text.split(/[\s,]+/)) {
    const range = /^(\d{1,6})(?:-(\d{1,6}))?$/.exec(part);
    if (!range) continue;
    const first = Number(range[1]);
    const last = Math.min(Number(range[2] ?? range[1]), first + 1023);
    for (let rank = first; rank <= last && found.size < 1024; rank += 1) found.add(rank);
  }
  return [...found].sort((one, other) => one - other);
}

export class ConsoleWindow {
  lines: PrintedLine[] = [];
  facts: PrintedLines | null = null;
  /** Whether the newest line is among them. */
  complete = false;
  private places = new Map<string, number>();
  private cursor = "";
  private started = false;
  private busy: AbortController | null = null;

  constructor(
    private readonly run: string,
    private readonly filter: Filter,
  ) {}

  /** The ranks that were asked for; none: all. */
  get ranks(): readonly number[] {
    return this.filter.ranks;
  }

  /** Whether all lines are there: the first and the newest too. */
  get whole(): boolean {
    return this.started && this.complete;
  }

  stop(): void {
    this.busy?.abort();
  }

  /** Load the newest lines, or those around a time. */
  async start(at: number | null): Promise<void> {
    if (at === null) {
      const found = await this.ask({ last: FIRST });
      this.complete = true;
      this.started = found.lines.length < FIRST;
      this.append(found);
      return;
    }
    const before = await this.ask({ until: at, last: FIRST / 2 });
    const after = await this.ask({ since: at, limit: FIRST });
    this.started = before.lines.length < FIRST / 2;
    this.append(before);
    this.append(after);
    this.complete = !after.more;
  }

  /** Load lines before the first; returns how many were added. */
  async older(): Promise<number> {
    const first = this.lines[0];
    if (this.started || this.busy || !first || this.lines.length >= MOST) return 0;
    const found = await this.ask({ until: first.time, last: MORE });
    const added = found.lines.filter((line) => !this.places.has(key(line)));
    this.started = added.length === 0;
    this.lines = [...added, ...this.lines];
    this.index();
    return added.length;
  }

  /** Load lines behind the last; returns whether anything changed. */
  async newer(): Promise<boolean> {
    if (this.busy || !this.cursor) return false;
    const found = await this.ask({ after: this.cursor, limit: MORE });
    this.complete = !found.more;
    return this.append(found);
  }

  /** Return the place of the line that was printed at a time, or next to it. */
  near(time: number): number {
    let best = 0;
    this.lines.forEach((line, place) => {
      const now = this.lines[best];
      if (now && Math.abs(line.time - time) < Math.abs(now.time - time)) best = place;
    });
    return best;
  }

  /** Return when a step ended; null if that is unknown. */
  async timeOf(step: number): Promise<number | null> {
    return (await this.ask({ step, limit: 1 })).step_time;
  }

  private append(found: PrintedLines): boolean {
    this.cursor = found.cursor;
    for (const line of found.lines) {
      const place = this.places.get(key(line));
      if (place !== undefined) this.lines[place] = line;
      else {
        this.places.set(key(line), this.lines.length);
        this.lines.push(line);
      }
    }
    if (this.lines.length > MOST) {
      this.lines = this.lines.slice(this.lines.length - MOST);
      this.index();
    }
    return found.lines.length > 0;
  }

  private index(): void {
    this.places = new Map(this.lines.map((line, place) => [key(line), place]));
  }

  private async ask(range: Record<string, string | number>): Promise<PrintedLines> {
    const busy = new AbortController();
    this.busy = busy;
    const { ranks, level, pattern } = this.filter;
    const query = { run: this.run, rank: ranks, level: level || null, pattern: pattern || null, ...range };
    try {
      this.facts = await json("/api/console", query, busy.signal);
      return this.facts;
    } finally {
      this.busy = null;
    }
  }
}

function key(line: PrintedLine): string {
  return `${line.attempt} ${line.rank} ${line.number} ${line.node}`;
}
