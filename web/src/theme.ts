/** Light and dark: from the system, or as chosen and stored in this browser. Charts use the colors of the style. */

export type Choice = "auto" | "light" | "dark";

const KEY = "stepscope-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function stored(): Choice {
  try {
    const word = localStorage.getItem(KEY);
    return word === "light" || word === "dark" ? word : "auto";
  } catch {
    return "auto"; // storage may be forbidden; then the system decides
  }
}

/** Return the chosen theme. */
export function choice(): Choice {
  return stored();
}

/** Return whether the page is dark. */
export function isDark(): boolean {
  return document.documentElement.dataset.theme === "dark";
}

/** Choose a theme and store it. */
export function choose(word: Choice): void {
  try {
    if (word === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, word);
  } catch {
    // storage may be forbidden: the choice then lasts as long as the page
  }
  apply(word);
}

function apply(word: Choice): void {
  const dark = word === "dark" || (word === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  colours.clear();
  for (const listener of listeners) listener();
}

/** Apply the stored theme and follow the system. */
export function start(): void {
  apply(stored());
  system.addEventListener("change", () => apply(stored()));
}

/** Add a listener to changes of the colors; returns a function that removes it. */
export function onTheme(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const colours = new Map<string, string>();

/** Return a color of the style by the name of its variable, without the dashes. */
export function colour(name: string): string {
  let found = colours.get(name);
  if (found === undefined) {
    found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
    colours.set(name, found);
  }
  return found;
}

/** Eight line colors that work with any color vision, then the same colors with another dash. */
export const LINE_COLOURS = 8;
const DASHES: number[][] = [[], [6, 4], [2, 3], [9, 3, 2, 3]];

/** Return the color of the n-th line. */
export function lineColour(place: number): string {
  return colour(`line-${place % LINE_COLOURS}`);
}

/** Return the dash of the n-th line, in CSS pixels. */
export function lineDash(place: number): number[] {
  return DASHES[Math.floor(place / LINE_COLOURS) % DASHES.length] ?? [];
}
