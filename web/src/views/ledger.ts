/** The ledger of a run: where time, money and energy went, what was wasted, and what would save some. */

import "./ledger.css";
import { json, type RunLedger, type RunStatus } from "../api.ts";
import { CachedAnswer } from "../cached_answer.ts";
import { type Child, fill, h } from "../dom.ts";
import { ABSENT, amount, capital, count, duration, number, share, value } from "../format.ts";
import { redraw } from "../redraw.ts";
import { type Mounted, type Page, runOf, type View } from "../view.ts";
import { type Column, card, coded, empty, failure, severityMark, skeleton, stateMark, table } from "../widgets.ts";
import { classColour, classLabel, type Share, shares } from "./ledger_classes.ts";

/** Milliseconds between two requests while the run is running, and as a multiple of their duration. */
const [ASK_MS, ASK_SHARE] = [5000, 10];
const JOULES_PER_KWH = 3.6e6;
const MOST = 12;

class LedgerView implements Mounted {
  private readonly ledger: CachedAnswer<RunLedger>;
  private readonly problem = h("div");
  private readonly numbers = h("dl", { class: "ledger-numbers" }, skeleton(2));
  private readonly classes = h("div", { class: "ledger-classes" }, skeleton(6));
  private readonly side = h("div", { class: "stack" });
  private readonly low = h("div", { class: "stack ledger-low" });
  private askedAt = 0;
  private state = "";
  private readonly stops: (() => void)[];

  constructor(root: HTMLElement, page: Page) {
    const run = runOf(page);
    this.ledger = new CachedAnswer(() => json("/api/ledger", { run: run.key }));
    fill(
      root,
      this.problem,
      h("section", { class: "card ledger-top" }, this.numbers),
      h("div", { class: "ledger-parts" }, card("Where the time went", this.classes), this.side),
      this.low,
    );
    this.stops = [this.ledger.listen(() => this.draw()), run.live.listen({ status: (status) => this.follow(status) })];
    this.askedAt = performance.now();
  }

  stop(): void {
    for (const stop of this.stops) stop();
  }

  /** Load again while the run is running, and once after its end. */
  private follow(status: RunStatus): void {
    const [before, now] = [this.state, performance.now()];
    this.state = status.state;
    const due = status.state === "running" && now - this.askedAt > Math.max(ASK_MS, ASK_SHARE * this.ledger.took);
    if (!due && (before === "" || before === status.state)) return;
    this.askedAt = now;
    this.ledger.refresh();
  }

  private draw(): void {
    const found = this.ledger.value;
    redraw(this.problem, this.ledger.error, () =>
      this.ledger.error ? failure(this.ledger.error, () => this.ledger.refresh()) : null,
    );
    if (!found) return;
    redraw(this.numbers, found, () =>
      numbers(found).map(([label, text, note, help]) =>
        h(
          "div",
          { title: help },
          h("dt", {}, label),
          h("dd", { class: "num" }, text),
          h("dd", { class: "soft" }, note),
        ),
      ),
    );
    redraw(this.classes, [found.seconds, found.money, found.energy], () => classes(found));
    redraw(this.side, [found.wasted, found.advice, found.money], () => [wasted(found), advice(found)]);
    redraw(this.low, found.attempts, () => attempts(found));
  }
}

/** Return the figures at the top: label, text, note and definition. */
function numbers(found: RunLedger): [string, string, string, string][] {
  const { money, energy, forecast, definitions } = found;
  const ways = [
    many(found.attempts.length, "attempt"),
    many(found.ranks, "rank") + (found.read_ranks < found.ranks ? ` (read: ${count(found.read_ranks)})` : ""),
    many(found.devices, found.device === "gpu" ? "GPU" : "machine"),
  ];
  const summed =
    found.imported && !found.imported.timed ? "sum of step times, because the log has no timestamps; " : "";
  const unknown = (found.seconds.unknown ?? 0) / (found.paid_seconds || 1);
  const dark =
    unknown < 0.001 ? "of the time was productive" : `or more; ${share(unknown)} of the time is not in the log`;
  const rows: [string, string, string, string][] = [
    ["Wall clock", duration(found.wall_seconds), summed + ways.join(", "), "From the first start to the last end"],
    [
      "Goodput",
      value(found.goodput_ratio, "ratio"),
      found.goodput_ratio === null ? "no steps recorded" : dark,
      definitions.goodput_ratio ?? "",
    ],
    [
      "Money",
      money ? `${amount(money.total)} ${money.currency}` : ABSENT,
      money
        ? `${amount(money.wasted)} of it wasted; ${number(money.per_device_hour)} per device hour, ${money.source}`
        : "no price: set ledger.price in stepscope.yaml",
      definitions.money ?? "",
    ],
    [
      "Energy",
      energy ? `${number(energy.kwh, 3)} kWh` : ABSENT,
      energy ? energyNote(energy) : "no power readings from GPUs or CPUs",
      definitions.joules ?? "",
    ],
  ];
  if (forecast)
    rows.push([
      "Ends in",
      duration(forecast.seconds),
      `${duration(forecast.low)} to ${duration(forecast.high)}` +
        (forecast.money === null ? "" : `; ${amount(forecast.money)} more to spend`),
      forecast.text,
    ]);
  return rows;
}

function energyNote(energy: NonNullable<RunLedger["energy"]>): string {
  const co2 = energy.co2_kg === null ? "" : `${number(energy.co2_kg, 3)} kg CO₂ (${energy.region}), `;
  const seen = energy.covered_ratio > 0.98 ? "" : `, measured ${share(energy.covered_ratio)} of the time`;
  return `${co2}by ${energy.sources.join(", ")}${seen}`;
}

function classes(found: RunLedger): Child {
  const rows = shares(found.seconds, found.wall_seconds);
  if (!rows.length) return empty("No data yet", "The run has just started.");
  const { money, energy } = found;
  const label = rows.map((one) => `${classLabel(one.name)} ${share(one.share)}`).join(", ");
  const bar = h(
    "div",
    { class: "phases", attrs: { role: "img", "aria-label": `All time: ${label}` } },
    rows.map((one) =>
      h(
        "div",
        {
          class: "phase",
          title: `${classLabel(one.name)}: ${duration(one.seconds)}, ${share(one.share)}`,
          style: { "flex-grow": String(one.share), background: classColour(one.name) },
        },
        one.share > 0.09 && one.name !== "other" ? h("span", {}, classLabel(one.name)) : null,
      ),
    ),
  );
  const columns: Column<Share>[] = [
    {
      title: "Class",
      cell: (one) =>
        h(
          "span",
          { class: "ledger-class", title: found.classes[one.name] ?? "" },
          h("i", { class: "swatch", style: { background: classColour(one.name) } }),
          classLabel(one.name),
        ),
    },
    { title: "Time", class: "num", cell: (one) => duration(one.seconds) },
    { title: "Share", class: "num", cell: (one) => share(one.share) },
    ...(money ? [{ title: money.currency, class: "num", cell: (one: Share) => amount(money.classes[one.name]) }] : []),
    ...(energy
      ? [
          {
            title: "kWh",
            class: "num ledger-energy",
            cell: (one: Share) => small((energy.joules[one.name] ?? 0) / JOULES_PER_KWH),
          },
        ]
      : []),
    { title: "Contents", class: "ledger-meaning soft", cell: (one) => found.classes[one.name] ?? "" },
  ];
  return [bar, h("div", { class: "scroll" }, table(columns, rows))];
}

function wasted(found: RunLedger): Child {
  const rows = found.wasted.filter((one) => (one.share ?? 0) >= 0.01).slice(0, 4);
  const { money } = found;
  if (!rows.length)
    return card(
      "Most time wasted on",
      h(
        "p",
        { class: "soft" },
        found.steps
          ? "Nothing takes 1 % of the time or more."
          : "Unknown: no steps recorded. Use run.step(), or stepscope run.",
      ),
    );
  return card(
    "Most time wasted on",
    h(
      "ul",
      { class: "ledger-list" },
      rows.map((one) =>
        h(
          "li",
          {},
          h(
            "div",
            { class: "ledger-line" },
            h("b", {}, classLabel(one.class)),
            h(
              "span",
              { class: "num soft" },
              [
                duration(one.seconds),
                share(one.share),
                ...(money ? [`${amount(money.classes[one.class])} ${money.currency}`] : []),
              ].join(" · "),
            ),
          ),
          h("p", { class: "next" }, coded(capital(one.remedy))),
        ),
      ),
    ),
  );
}

function advice(found: RunLedger): Child {
  if (!found.advice.length) return null;
  return card(
    "Advice",
    h(
      "ul",
      { class: "ledger-list" },
      found.advice
        .slice(0, 6)
        .map((one) =>
          h(
            "li",
            {},
            one.severity === "info" ? null : severityMark(one.severity),
            h("p", {}, capital(one.text)),
            h(
              "p",
              { class: "next" },
              coded(capital(one.remedy)),
              one.gain_ratio ? ` (saves at most ${share(one.gain_ratio)})` : "",
            ),
          ),
        ),
    ),
  );
}

function attempts(found: RunLedger): Child {
  if (found.attempts.length < 2) return null;
  const of = (name: string) => ({
    title: classLabel(name),
    class: "num",
    cell: (one: RunLedger["attempts"][number]) => duration(one.classes[name] ?? 0),
  });
  return card(
    "Attempts",
    h(
      "div",
      { class: "scroll" },
      table(
        [
          { title: "Attempt", class: "num", cell: (one) => one.attempt },
          { title: "State", cell: (one) => stateMark(one.state) },
          { title: "Took", class: "num", cell: (one) => duration(one.seconds) },
          of("productive"),
          of("restart"),
          of("redone"),
          of("stall"),
        ],
        found.attempts.slice(-MOST),
      ),
    ),
  );
}

/** Return a number, or a bound if it is too small to read. */
function small(amount: number): string {
  return amount > 0 && amount < 1e-4 ? "<0.0001" : number(amount, 3);
}

function many(total: number, what: string): string {
  return `${count(total)} ${what}${total === 1 ? "" : "s"}`;
}

export const ledger: View = {
  name: "ledger",
  title: "Ledger",
  of: "run",
  mount: (root, page) => new LedgerView(root, page),
};
