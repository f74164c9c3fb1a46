/** One alert in detail: measured value and limit, a chart with its time marked, and what to do. */

import type { AlertRow } from "../api.ts";
import { ChartLink } from "../chart_link.ts";
import { Curves } from "../curves.ts";
import { fill, h } from "../dom.ts";
import { ABSENT, count, duration, moment, value } from "../format.ts";
import { Panel } from "../panel.ts";
import { address } from "../router.ts";
import type { RunModel } from "../run.ts";
import { coded, empty, severityMark } from "../widgets.ts";
import { stateWord } from "./alert_order.ts";
import { consoleAt } from "./console_link.ts";
import { hangEvidence } from "./hang.ts";

export type Order = (alert: AlertRow, action: "ack" | "silence", seconds: number) => void;

const SILENCES: [string, number][] = [
  ["15 minutes", 900],
  ["1 hour", 3600],
  ["1 day", 86400],
];

/** Evidence with a place of its own. */
const ELSEWHERE = new Set(["step", "rank", "sources"]);

/** Return a value of the evidence if it is a number. */
function numeric(found: unknown): number | null {
  return typeof found === "number" && Number.isFinite(found) ? found : null;
}

/** Shows the chosen alert. */
export class Detail {
  readonly element = h("section", { class: "card alert-detail", attrs: { "aria-label": "Alert details" } });
  private panel: Panel | null = null;
  private curves: Curves | null = null;
  private drawn = "";
  private alert: AlertRow | null = null;

  constructor(
    private readonly run: RunModel,
    private readonly actions: boolean,
    private readonly order: Order,
  ) {}

  /** Draw again if the run has started or ended since. */
  follow(): void {
    if (this.drawn) this.show(this.alert);
  }

  /** Draw again after the run's metrics are loaded. */
  again(): void {
    if (this.drawn && !this.panel) {
      this.drawn = "";
      this.show(this.alert);
    }
  }

  show(alert: AlertRow | null): void {
    this.alert = alert;
    const key = JSON.stringify([alert, this.ended()]);
    if (key === this.drawn) return;
    this.drawn = key;
    this.stop();
    if (!alert) {
      fill(this.element, empty("No alert selected", "Select an alert to see its evidence."));
      return;
    }
    fill(
      this.element,
      h(
        "header",
        { class: "alert-title" },
        severityMark(alert.severity),
        h("h2", {}, alert.rule),
        h("span", { class: `chip state-${alert.state}` }, stateWord(alert, !this.ended())),
      ),
      h("p", { class: "alert-said" }, alert.text),
      alert.remedy ? h("p", { class: "alert-remedy" }, h("strong", {}, "What to do: "), coded(alert.remedy)) : null,
      hangEvidence(alert.evidence.sources),
      this.buttons(alert),
      this.chart(alert),
      this.facts(alert),
    );
  }

  stop(): void {
    this.panel?.stop();
    this.curves?.stop();
    this.panel = this.curves = null;
  }

  /** Return whether the run has ended: then no watcher takes requests, and no alert lasts longer. */
  private ended(): boolean {
    const status = this.run.live.status;
    return status !== null && status.state !== "running";
  }

  private buttons(alert: AlertRow): HTMLElement | null {
    if (!this.actions || alert.state === "resolved" || this.ended()) return null;
    const button = (text: string, click: () => void): HTMLElement =>
      h("button", { class: "button", attrs: { type: "button" }, on: { click } }, text);
    return h(
      "div",
      { class: "alert-actions" },
      alert.state === "firing" || alert.state === "pending"
        ? button("Acknowledge", () => this.order(alert, "ack", 0))
        : null,
      alert.state === "silenced"
        ? null
        : SILENCES.map(([text, seconds]) => button(`Silence for ${text}`, () => this.order(alert, "silence", seconds))),
    );
  }

  private chart(alert: AlertRow): HTMLElement | null {
    const name = alert.evidence?.metric;
    if (typeof name !== "string" || !name) return null;
    const facts = this.run.names.value?.metrics.find((metric) => metric.name === name);
    if (!facts) return null;
    const limit = numeric(alert.evidence?.threshold);
    this.curves = new Curves([this.run.key], this.run.live);
    const source = { curves: this.curves, link: new ChartLink(), live: this.run.live };
    this.curves.follow(source.link);
    this.panel = new Panel(source, {
      title: name,
      names: [name],
      unit: facts.unit,
      height: 260,
      limits: limit === null ? [] : [{ value: limit, label: "limit" }],
      markers: [
        { time: alert.since, step: alert.step, text: "fires", kind: "alert" },
        ...(alert.until === null ? [] : [{ time: alert.until, text: "resolved", kind: "event" as const }]),
      ],
    });
    this.panel.setOptions({ axis: "time" });
    return h("div", { class: "alert-chart" }, this.panel.element);
  }

  private facts(alert: AlertRow): HTMLElement {
    const now = this.run.live.now();
    const end = alert.until ?? (this.ended() ? (this.run.live.status?.heard ?? now) : now);
    const evidence = alert.evidence;
    const unit = this.run.names.value?.metrics.find((metric) => metric.name === evidence.metric)?.unit ?? "";
    const rows: [string, string][] = [
      ["since", moment(alert.since, now)],
      ["until", alert.until !== null ? moment(alert.until, now) : this.ended() ? "the end of the run" : "now"],
      ["lasted", alert.since === null ? ABSENT : duration(Math.max(0, end - alert.since))],
      ["step", alert.step === null ? ABSENT : count(alert.step)],
      ["rank", alert.rank === null ? "all ranks, or the machine" : String(alert.rank)],
      ...Object.entries(evidence)
        .filter(([key, found]) => found !== null && found !== "" && !ELSEWHERE.has(key))
        .map(([key, found]): [string, string] => [
          key,
          shown(found, key === "value" || key === "threshold" ? unit : ""),
        ]),
      ...Object.entries(alert.labels).map(([key, found]): [string, string] => [`label ${key}`, shown(found, "")]),
    ];
    return h(
      "div",
      { class: "alert-facts" },
      alert.since === null
        ? null
        : h("a", { attrs: { href: this.console(alert, alert.since) } }, "Console at this time"),
      h(
        "dl",
        { class: "facts" },
        rows.map(([key, text]) => [h("dt", {}, key), h("dd", { class: "num" }, text)]),
      ),
      this.course(alert, now),
    );
  }

  /** Return the address of what the rank printed at that time. */
  private console(alert: AlertRow, since: number): string {
    return address({ view: "console", run: this.run.key, params: consoleAt(since, alert.rank) });
  }

  /** Return the history of its states. */
  private course(alert: AlertRow, now: number): HTMLElement | null {
    const { transitions } = alert as AlertRow & {
      transitions?: { time: number | null; state: string; text: string }[];
    };
    if (!transitions?.length) return null;
    return h(
      "ol",
      { class: "alert-course", attrs: { "aria-label": "History of this alert" } },
      transitions.map(({ time, state, text }) =>
        h(
          "li",
          {},
          h("span", { class: "soft num" }, moment(time, now)),
          h("span", { class: `chip state-${state}` }, state),
          text === alert.text ? null : h("span", {}, text),
        ),
      ),
    );
  }
}

function shown(found: unknown, unit: string): string {
  if (found === null || found === undefined) return ABSENT;
  if (typeof found === "number") return value(found, unit);
  if (typeof found === "object" && !Array.isArray(found))
    return Object.entries(found)
      .map(([key, one]) => `${key} ${shown(one, unit)}`)
      .join(", ");
  return typeof found === "string" ? found : JSON.stringify(found);
}
