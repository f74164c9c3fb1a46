/** The classes of the ledger: order, names and colors. */

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
  /** Share of the wall-clock time, 0 to 1. */
  share: number;
}

/** Return the color of a class; a phase has its usual color. */
export function classColour(name: string): string {
  return `var(${COLOURS[name] ?? "--phase-own"})`;
}

/** Return the display name of a class. */
export function classLabel(name: string): string {
  return name === "redone" ? "redone work" : name;
}

/** Return the classes with any time, in the server's order, with their share of the wall-clock time. */
export function shares(seconds: Readonly<Record<string, number>>, wall: number): Share[] {
  return Object.entries(seconds)
    .filter(([, spent]) => spent > 0 && wall > 0)
    .map(([name, spent]) => ({ name, seconds: spent, share: spent / wall }));
}
