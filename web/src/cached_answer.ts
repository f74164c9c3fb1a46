/** A fact from the server that is asked for when needed, and again when it may have changed. */

import { reason } from "./api.ts";

/** Holds the newest answer; old ones stay in sight while a new one is on its way. */
export class CachedAnswer<T> {
  value: T | null = null;
  error = "";
  /** How long the last answer took, in ms. */
  took = 0;
  private listeners = new Set<() => void>();
  private asked = false;
  private busy = false;
  private again = false;

  constructor(private readonly load: () => Promise<T>) {}

  /** Listen; called at once if there is a value or an error. The first listener makes it load. Returns how to stop. */
  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    if (this.value !== null || this.error) listener();
    if (!this.asked) this.refresh();
    return () => this.listeners.delete(listener);
  }

  /** Load again, if anybody has ever asked; at most one request is on its way. */
  refresh(): void {
    if (!this.asked && !this.listeners.size) return;
    this.asked = true;
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    void this.fetch();
  }

  private async fetch(): Promise<void> {
    const begun = performance.now();
    try {
      this.value = await this.load();
      this.error = "";
    } catch (error) {
      this.error = reason(error);
    }
    this.took = performance.now() - begun;
    this.busy = false;
    for (const listener of [...this.listeners]) listener();
    if (this.again) {
      this.again = false;
      this.refresh();
    }
  }
}
