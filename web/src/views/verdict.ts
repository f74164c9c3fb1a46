/** The verdict on a run: its state, then the findings of the diagnosis with evidence and remedy. */

import type { Diagnosis, FindingRow, RunStatus } from "../api.ts";
import type { Range } from "../chart_link.ts";
import { type Child, h } from "../dom.ts";
import { capital, count, duration, share } from "../format.ts";
import { coded, severityMark, stateMark, toneOf } from "../widgets.ts";
import { hangEvidence } from "./hang.ts";

const GRAVE: Record<string, string> = { critical: "critical", error: "critical", warning: "warning" };
const MOST = 5;

/** Return the style of the verdict. */
export function toneOfVerdict(status: RunStatus, found: Diagnosis | null): string {
  const ended = status.state !== "running" && status.state !== "finished";
  if (ended) return toneOf(status.state);
  const grave = GRAVE[primaryOf(found)?.severity ?? ""];
  return grave === "critical"
    ? "bad"
    : grave === "warning" && !status.cause
      ? "warn"
      : toneOf(status.state, status.cause);
}

function primaryOf(found: Diagnosis | null): FindingRow | null {
  return found?.findings.find((one) => one.kind === found.primary) ?? null;
}

/** Return the verdict as elements; `link` returns the address of a range of steps. */
export function verdict(
  status: RunStatus,
  found: Diagnosis | null,
  waiting: boolean,
  link: (range: Range) => string,
): Child {
  const primary = primaryOf(found);
  const rest = (found?.findings ?? []).filter((one) => one !== primary);
  const missing = found?.missing ?? [];
  return [
    h(
      "div",
      { class: "verdict-state" },
      stateMark(status.state, status.cause),
      primary?.text.includes(status.cause) ? null : h("span", { class: "soft" }, status.cause),
    ),
    primary
      ? main(primary, link)
      : h("h2", {}, found ? capital(found.summary) || "No problems found." : stateText(status)),
    waiting ? h("p", { class: "soft" }, "Diagnosing…") : null,
    rest.length
      ? h(
          "ul",
          { class: "also" },
          rest.slice(0, MOST).map((one) => also(one, link)),
        )
      : null,
    rest.length > MOST ? h("p", { class: "soft" }, `and ${rest.length - MOST} more: stepscope diagnose`) : null,
    (found?.notes ?? []).map((one) => h("p", { class: "soft small" }, coded(capital(one)))),
    missing.slice(0, 2).map((one) => h("p", { class: "soft small" }, coded(`${capital(one.why)}; ${one.remedy}`))),
  ];
}

function stateText(status: RunStatus): string {
  if (status.state === "running") return "The run is running.";
  if (status.state === "finished") return status.cause ? `The run finished, but ${status.cause}` : "The run finished.";
  return status.cause || `The run ended: ${status.state}.`;
}

function main(one: FindingRow, link: (range: Range) => string): Child {
  const facts = [
    one.expected_gain ?? "",
    one.cost_seconds ? `cost ${duration(one.cost_seconds)} so far` : "",
    one.confidence ? `confidence ${share(one.confidence)}` : "",
  ].filter(Boolean);
  return [
    h("h2", {}, coded(capital(one.text))),
    hangEvidence(one.evidence.sources),
    one.remedy ? h("p", { class: "next" }, coded(capital(one.remedy))) : null,
    facts.length || rangeOf(one)
      ? h(
          "p",
          { class: "soft num" },
          facts.join(" · "),
          facts.length && rangeOf(one) ? " · " : null,
          evidence(one, link),
        )
      : null,
  ];
}

function also(one: FindingRow, link: (range: Range) => string): HTMLElement {
  return h(
    "li",
    {},
    severityMark(GRAVE[one.severity] ?? "info"),
    h(
      "details",
      {},
      h("summary", {}, coded(one.text)),
      h("p", { class: "next" }, coded(one.remedy || "No remedy known."), " ", evidence(one, link)),
    ),
  );
}

function rangeOf(one: FindingRow): Range | null {
  const range = one.evidence.range;
  if (!Array.isArray(range) || range.length !== 2) return null;
  const [from, to] = range.map(Number);
  return from !== undefined && to !== undefined && Number.isFinite(from) && to > from ? [from, to] : null;
}

function evidence(one: FindingRow, link: (range: Range) => string): Child {
  const range = rangeOf(one);
  return range ? h("a", { attrs: { href: link(range) } }, `show steps ${count(range[0])} to ${count(range[1])}`) : null;
}
