/** The classes of the ledger: their order, words and colours. */

const COLOURS: Record<string, string> = {
  productive: "--phase-optimizer",
  data: "--phase-data",
  copy: "--phase-copy",
  checkpoint: "--phase-checkpoint",
  evaluation: "--phase-evaluation",
  compile: "--phase-compile",
  stall: "--bad",
  restart: "--phase-communication",
  redone: "--phase-backward",
  start: "--phase-gc",
  other: "--phase-other",
  away: "--grid",
  unknown: "--edge-strong",
};

export interface Share {
  name: string;
  seconds: number;
  /** Of the wall clock, 0 to 1. */
  share: number;
}

/** Return the colour of a class; a phase has the one that it has everywhere. */
export function classColour(name: string): string {
  return `var(${COLOURS[name] ?? "--phase-own"})`;
}

/** Return a class as people say it. */
export function spoken(name: string): string {
  return name === "redone" ? "redone work" : name;
}

/** Return the classes that have any time, in the server's order, with their share of the wall clock. */
export function shares(seconds: Readonly<Record<string, number>>, wall: number): Share[] {
  return Object.entries(seconds)
    .filter(([, spent]) => spent > 0 && wall > 0)
    .map(([name, spent]) => ({ name, seconds: spent, share: spent / wall }));
}
