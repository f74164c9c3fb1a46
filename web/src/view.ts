/** The interface between the page and its views. */

import type { ServerInfo } from "./api.ts";
import type { Place, Router } from "./router.ts";
import type { RunModel } from "./run.ts";

export interface Page {
  router: Router;
  server: ServerInfo;
  /** The current run; null for views of all runs. */
  run: RunModel | null;
  /** Announce a text to screen readers, and show it briefly. */
  announce(text: string): void;
}

export interface Mounted {
  /** The address has changed, the view and the run have not. */
  update?(place: Place, before: Place): void;
  /** The view is closed: remove all listeners. */
  stop?(): void;
}

export interface View {
  /** The word in the address. */
  name: string;
  title: string;
  of: "run" | "runs";
  /** Whether the server lacks the data of this view. */
  hidden?(server: ServerInfo): boolean;
  mount(root: HTMLElement, page: Page): Mounted;
}

/** Return the run of a page that must have one. */
export function runOf(page: Page): RunModel {
  if (!page.run) throw new Error("this view needs a run");
  return page.run;
}
