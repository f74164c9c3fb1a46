/** Draw a part again only if its data has changed, which avoids flicker and keeps the selection. */

import { type Child, fill } from "./dom.ts";

const drawn = new WeakMap<Element, string>();

/** Fill an element unless it shows the same facts already. */
export function redraw(element: Element, facts: unknown, make: () => Child): void {
  const key = JSON.stringify(facts) ?? "";
  if (drawn.get(element) === key) return;
  drawn.set(element, key);
  fill(element, make());
}
