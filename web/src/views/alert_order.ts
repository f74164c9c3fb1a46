/** The order of alerts, and the search in them. */

import type { AlertRow } from "../api.ts";

const OPEN = new Set(["pending", "firing", "acknowledged", "silenced"]);
const ORDER = ["critical", "warning"];

/** Return whether an alert is not resolved. */
export function isOpen(alert: AlertRow): boolean {
  return OPEN.has(alert.state);
}

/** Return the state of an alert in words; an alert that fires when its run ends is no longer firing. */
export function stateWord(alert: Pick<AlertRow, "state">, running: boolean): string {
  return alert.state === "firing" && !running ? "at the end" : alert.state;
}

/** Return alerts by urgency: firing before acknowledged, then by severity, then the newest. */
export function byUrgency(alerts: AlertRow[]): AlertRow[] {
  const taken = (alert: AlertRow): number => (alert.state === "firing" ? 0 : 1);
  const rank = (alert: AlertRow): number => (ORDER.indexOf(alert.severity) + ORDER.length + 1) % (ORDER.length + 1);
  return [...alerts].sort(
    (one, other) => taken(one) - taken(other) || rank(one) - rank(other) || other.since - one.since,
  );
}

/** Return the alerts whose rule, text or labels contain all words. */
export function matching(alerts: AlertRow[], words: string): AlertRow[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return alerts.filter((alert) => {
    const text =
      `${alert.rule} ${alert.text} ${alert.severity} ${alert.state} ${JSON.stringify(alert.labels)}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}
