/** Which alerts come first, and which match what was typed. */

import type { Alert, Severity } from "../api.ts";

const OPEN = new Set(["pending", "firing", "acknowledged", "silenced"]);
const ORDER: Record<Severity, number> = { critical: 0, warning: 1, info: 2 };

/** Tell whether an alert still asks for somebody. */
export function isOpen(alert: Alert): boolean {
  return OPEN.has(alert.state);
}

/** Return the state of an alert in words: what still fires when a run ends is not news any more. */
export function stateWord(alert: Pick<Alert, "state">, running: boolean): string {
  return alert.state === "firing" && !running ? "at the end" : alert.state;
}

/** Return what is active, the worst first: firing before what somebody has taken, then the newest. */
export function byUrgency(alerts: Alert[]): Alert[] {
  const taken = (alert: Alert): number => (alert.state === "firing" ? 0 : 1);
  return [...alerts].sort(
    (one, other) =>
      taken(one) - taken(other) || ORDER[one.severity] - ORDER[other.severity] || (other.since ?? 0) - (one.since ?? 0),
  );
}

/** Return the alerts whose rule, text or labels hold all words. */
export function matching(alerts: Alert[], words: string): Alert[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return alerts.filter((alert) => {
    const text =
      `${alert.rule} ${alert.text} ${alert.severity} ${alert.state} ${JSON.stringify(alert.labels ?? {})}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}
