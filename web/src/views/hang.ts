/** Why a job hangs: the ranks that are the cause, what each source shows, and what to do. */

import "./hang.css";
import type { HangFacts, RunEvent } from "../api.ts";
import { type Child, h } from "../dom.ts";
import { capital, share } from "../format.ts";
import { coded, severityMark } from "../widgets.ts";

/** The sources of evidence in the order in which they are shown. */
const SOURCES = { steps: "Steps", stacks: "Stacks", flight_recorder: "Flight recorder", ras: "NCCL RAS" };

/** Return the sentences of each source; null if none has any. */
export function hangEvidence(sources: unknown): HTMLElement | null {
  if (typeof sources !== "object" || sources === null) return null;
  const known = sources as Record<string, unknown>;
  const rows = Object.entries(SOURCES).flatMap(([key, title]): [string, string[]][] => {
    const said = known[key];
    const sentences = Array.isArray(said) ? said.filter((one): one is string => typeof one === "string") : [];
    return sentences.length ? [[title, sentences]] : [];
  });
  if (!rows.length) return null;
  return h(
    "dl",
    { class: "facts hang-evidence", attrs: { "aria-label": "Evidence" } },
    rows.map(
      ([title, sentences]): Child => [
        h("dt", {}, title),
        h(
          "dd",
          {},
          sentences.map((one) => h("p", {}, one)),
        ),
      ],
    ),
  );
}

/** Return the card at the top of the ranks. */
export function hangCard(found: HangFacts): HTMLElement {
  const sure = `${found.kind.replaceAll("_", " ")}, ${share(found.confidence)} sure`;
  return h(
    "section",
    { class: "card hang-card", attrs: { "aria-label": "Hang" } },
    h("div", { class: "hang-head" }, severityMark("critical"), h("span", { class: "soft" }, sure)),
    h("h2", {}, found.text),
    hangEvidence(found.evidence),
    found.remedy ? h("p", { class: "next" }, coded(capital(found.remedy))) : null,
  );
}

const NEWS = new Set(["stalled", "hung", "recovered", "hang_verdict", "ended"]);

/** Return how often ranks stood still, went on or ended: while they stand, no step tells of it. */
export function standings(events: readonly RunEvent[]): number {
  return events.filter((event) => NEWS.has(event.kind)).length;
}
