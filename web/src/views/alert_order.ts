/** Which alerts come first, and which match what was typed. */

import type { Alert } from "../api.ts";

const OPEN = new Set(["pending", "firing", "acknowledged", "silenced"]);
const ORDER = ["critical", "warning"];

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
  const rank = (alert: Alert): number => (ORDER.indexOf(alert.severity) + ORDER.length + 1) % (ORDER.length + 1);
  return [...alerts].sort(
    (one, other) => taken(one) - taken(other) || rank(one) - rank(other) || other.since - one.since,
  );
}

/** Return the alerts whose rule, text or labels hold all words. */
export function matching(alerts: Alert[], words: string): Alert[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return alerts.filter((alert) => {
    const text =
      `${alert.rule} ${alert.text} ${alert.severity} ${alert.state} ${JSON.stringify(alert.labels)}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}
