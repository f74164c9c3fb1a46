/** A response of the server that is loaded on demand, and again when it may have changed. */

import { reason } from "./api.ts";

/** Holds the newest response; the old value stays while a new one is loading. */
export class CachedAnswer<T> {
  value: T | null = null;
  error = "";
  /** Duration of the last request in milliseconds. */
  took = 0;
  private listeners = new Set<() => void>();
  private asked = false;
  private busy = false;
  private again = false;

  constructor(private readonly load: () => Promise<T>) {}

  /** Add a listener, which is called at once if there is a value or an error. Returns a function that removes it. */
  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    if (this.value !== null || this.error) listener();
    if (!this.asked) this.refresh();
    return () => this.listeners.delete(listener);
  }

  /** Load again, if it was ever requested; at most one request runs at a time. */
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
