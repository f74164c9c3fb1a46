/** The steps of one rank: each phase, and the median of the other ranks below it. */

import type { RankStep, ShownRank } from "../api.ts";
import { fill, h } from "../dom.ts";
import { ABSENT, count, duration, value } from "../format.ts";
import { phaseColour, stateMark } from "../widgets.ts";
import { coordinates } from "./rank_order.ts";

/** Show a step of a rank, or the mean of several; `row` has the rank's present state, `console` is a link. */
export function drawPanel(element: HTMLElement, step: RankStep, row: ShownRank | undefined, console: string): void {
  const late = step.late_seconds;
  const longest = Math.max(...step.phases.flatMap((phase) => [phase.seconds ?? 0, phase.usual_seconds ?? 0]), 1e-9);
  fill(
    element,
    h(
      "header",
      {},
      h("h2", {}, step.rank === null ? "No rank" : `Rank ${step.rank}`),
      h("span", { class: "soft cut", title: step.node }, step.host ? `on ${step.host}` : ""),
      row ? stateMark(row.stall || row.state, row.cause) : null,
    ),
    row?.blame ? h("p", { class: "bad" }, `It ${row.blame}.`) : null,
    h("p", { class: "soft" }, spanOf(step)),
    h(
      "dl",
      { class: "rank-numbers num" },
      number("step", step.step_seconds === null ? ABSENT : duration(step.step_seconds)),
      number("median rank", step.usual_seconds === null ? ABSENT : duration(step.usual_seconds)),
      number("late", late === null ? ABSENT : signed(late), late !== null && late > 0.05 * (step.usual_seconds ?? 0)),
    ),
    step.phases.length
      ? h(
          "ul",
          { class: "rank-phases" },
          step.phases.map((phase) => phaseLine(phase, longest)),
        )
      : h("p", { class: "soft" }, "The phases of its steps were not recorded."),
    step.phases.length
      ? h(
          "p",
          { class: "soft rank-key" },
          h("i", { class: "wide" }),
          "this rank",
          h("i", { class: "thin" }),
          "median rank",
          step.phases.some((phase) => phase.may_wait) ? h("span", {}, "* may wait for other ranks") : null,
        )
      : null,
    row ? facts(row) : null,
    h("p", {}, h("a", { attrs: { href: console } }, "What it printed then")),
  );
}

function spanOf(step: RankStep): string {
  return step.last_step > step.step
    ? `Mean of steps ${count(step.step)} to ${count(step.last_step)}`
    : `Step ${count(step.step)}`;
}

/** Return what a panel shows as one sentence, for screen readers. */
export function inWords(step: RankStep): string {
  const late = step.late_seconds === null ? "" : `, ${signed(step.late_seconds)} beyond the median rank`;
  return `Rank ${step.rank}, ${spanOf(step).toLowerCase()}: ${duration(step.step_seconds)}${late}`;
}

function number(label: string, text: string, bad = false): HTMLElement {
  return h("div", {}, h("dt", {}, label), h("dd", { class: bad ? "bad" : "" }, text));
}

/** Return a difference with its sign. */
export function signed(seconds: number): string {
  return seconds === 0 ? "0" : `${seconds > 0 ? "+" : ""}${duration(seconds)}`;
}

function phaseLine(phase: RankStep["phases"][number], longest: number): HTMLElement {
  const bar = (seconds: number | null, kind: string): HTMLElement =>
    h("i", {
      class: kind,
      style: { width: `${((seconds ?? 0) / longest) * 100}%`, background: `var(--${phaseColour(phase.phase)})` },
    });
  const beyond = phase.seconds === null || phase.usual_seconds === null ? null : phase.seconds - phase.usual_seconds;
  const much = beyond !== null && !phase.may_wait && beyond > 0.05 * longest;
  return h(
    "li",
    { title: `${phase.phase}: ${duration(phase.seconds)}, median rank ${duration(phase.usual_seconds)}` },
    h("span", { class: "cut" }, `${phase.phase}${phase.may_wait ? " *" : ""}`),
    h("span", { class: "rank-bars" }, bar(phase.seconds, "wide"), bar(phase.usual_seconds, "thin")),
    h("span", { class: "num" }, duration(phase.seconds)),
    h("span", { class: `num ${much ? "bad" : "soft"}` }, beyond === null ? ABSENT : signed(beyond)),
  );
}

function facts(row: ShownRank): HTMLElement {
  const gpu = row.gpu === null ? "" : `${row.gpu}${row.gpu_name ? ` (${row.gpu_name})` : ""}`;
  const heat = row.temperature === null ? "" : value(Math.round(row.temperature), "celsius");
  const place = Object.entries(row.coordinates).map(([name, at]) => `${name} ${at}`);
  const lines: [string, string, boolean][] = [
    ["newest step", row.step === null ? "" : behind(row), (row.behind_steps ?? 0) > 1],
    ["last seen in", row.last_phase, false],
    ["place", place.join(", ") || coordinates(row), false],
    ["GPU", gpu, false],
    [
      "temperature",
      [heat, row.throttled.length ? `throttled: ${row.throttled.join(", ")}` : ""].filter(Boolean).join(", "),
      row.throttled.length > 0,
    ],
    ["cause", row.cause, !row.is_well],
  ];
  return h(
    "dl",
    { class: "facts" },
    lines
      .filter(([, text]) => text !== "")
      .map(([label, text, bad]) => [h("dt", {}, label), h("dd", { class: bad ? "bad" : "" }, text)]),
  );
}

/** Return the newest step of a rank, and how far it is behind the first. */
export function behind(row: ShownRank): string {
  if (row.step === null) return ABSENT;
  return row.behind_steps ? `${count(row.step)}, ${count(row.behind_steps)} behind` : count(row.step);
}
