/** Draw a part again only if what it shows has changed: nothing flickers, and what is selected stays so. */

import { type Child, fill } from "./dom.ts";

const drawn = new WeakMap<Element, string>();

/** Fill an element from facts, unless it shows the same already. */
export function redraw(element: Element, facts: unknown, make: () => Child): void {
  const key = JSON.stringify(facts) ?? "";
  if (drawn.get(element) === key) return;
  drawn.set(element, key);
  fill(element, make());
}
