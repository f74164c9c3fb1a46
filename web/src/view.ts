/** What a view is given, and what it gives back. */

import type { Server } from "./api.ts";
import type { Place, Router } from "./router.ts";
import type { RunModel } from "./run.ts";

export interface Page {
  router: Router;
  server: Server;
  /** The run in view; null for views of all runs. */
  run: RunModel | null;
  /** Say something to people who do not see the page, and show it for a moment. */
  announce(text: string): void;
}

export interface Mounted {
  /** The address has changed, the view and the run have not. */
  update?(place: Place, before: Place): void;
  /** The view is left: stop listening. */
  stop?(): void;
}

export interface View {
  /** The word in the address. */
  name: string;
  title: string;
  of: "run" | "runs";
  /** Leave it out where the server cannot serve it. */
  hidden?(server: Server): boolean;
  mount(root: HTMLElement, page: Page): Mounted;
}

/** Return the run of a page that must have one. */
export function runOf(page: Page): RunModel {
  if (!page.run) throw new Error("this view is of a run");
  return page.run;
}
