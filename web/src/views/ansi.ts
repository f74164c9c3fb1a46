/** Colour codes of a terminal as pieces of text with classes; everything else of a line stays text. */

export interface Piece {
  text: string;
  /** Classes of the style; empty for plain text. */
  style: string;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
const CODE = /\u001b\[([0-9;:]{0,40})m/g;
const STYLES: Record<number, string> = { 1: "ansi-bold", 2: "ansi-dim", 3: "ansi-italic", 4: "ansi-underline" };
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const OFF: Record<number, string[]> = {
  22: ["ansi-bold", "ansi-dim"],
  23: ["ansi-italic"],
  24: ["ansi-underline"],
  39: COLOURS.map((name) => `ansi-${name}`),
};

/** Return the pieces of a line. Backgrounds and colours beyond the first 16 are left out. */
export function pieces(line: string): Piece[] {
  const found: Piece[] = [];
  const active = new Set<string>();
  let at = 0;
  const add = (text: string): void => {
    if (text) found.push({ text, style: [...active].join(" ") });
  };
  for (const code of line.matchAll(CODE)) {
    add(line.slice(at, code.index));
    at = code.index + code[0].length;
    apply(active, (code[1] ?? "").split(/[;:]/).map(Number));
  }
  add(line.slice(at));
  return found;
}

/** Return a line without its colour codes. */
export function uncoloured(line: string): string {
  return line.replace(CODE, "");
}

function apply(active: Set<string>, codes: number[]): void {
  for (let place = 0; place < codes.length; place += 1) {
    const code = codes[place] ?? 0;
    if (code === 0) active.clear();
    else if (code === 38 || code === 48) place += codes[place + 1] === 5 ? 2 : 4;
    else if (STYLES[code]) active.add(STYLES[code]);
    else if (OFF[code]) for (const style of OFF[code]) active.delete(style);
    else colour(active, code);
  }
}

function colour(active: Set<string>, code: number): void {
  const name = COLOURS[code >= 90 ? code - 90 : code - 30];
  if (!name || code < 30 || code > 97 || (code > 37 && code < 90)) return;
  for (const other of OFF[39] ?? []) active.delete(other);
  active.add(`ansi-${name}`);
}
