/** A run at a glance: verdict, progress, where the time of a step goes, and recent events. */

import "./overview.css";
import { type AlertRow, type Diagnosis, json, type RunHead, type RunStatus } from "../api.ts";
import { CachedAnswer } from "../cached_answer.ts";
import type { Axis } from "../chart.ts";
import { zoomText } from "../chart_link.ts";
import { type Child, fill, h, setText, show } from "../dom.ts";
import { ABSENT, ago, count, duration, moment, number, value } from "../format.ts";
import { markersOf } from "../markers.ts";
import { axisOf } from "../metric_axis.ts";
import { Panel } from "../panel.ts";
import { redraw } from "../redraw.ts";
import type { Place } from "../router.ts";
import type { RunModel } from "../run.ts";
import { type Mounted, type Page, runOf, type View } from "../view.ts";
import { card, failure, phaseBar, severityMark, skeleton, stateMark, table } from "../widgets.ts";
import { byUrgency, stateWord } from "./alert_order.ts";
import { consoleAt } from "./console_link.ts";
import { endCard } from "./first_error.ts";
import { configFacts, machineFacts } from "./run_facts.ts";
import { SinkTable } from "./sink_table.ts";
import { toneOfVerdict, verdict } from "./verdict.ts";

const DIAGNOSE_MS = 10000;
const SINKS_MS = 5000;
const MOST_CHARTS = 6;
/** Numbers that the progress bar shows already. */
const SAID = new Set(["step", "epoch", "rate"]);

class OverviewView implements Mounted {
  private readonly run: RunModel;
  private readonly verdict = h("section", { class: "card verdict" }, skeleton(2));
  private readonly numbers = h("dl", { class: "numbers" }, skeleton(3));
  private readonly bar = h("div", {});
  private readonly progressText = h("div", { class: "progress-text" });
  private readonly progress: HTMLElement;
  private readonly phases = h("div", {}, skeleton(2));
  private readonly phaseNote = h("span", { class: "soft num" });
  private readonly sinks = new SinkTable();
  private readonly alertCard: HTMLElement;
  private readonly alerts = h("ul", { class: "list" });
  private readonly changes = h("ul", { class: "list" });
  private readonly changeCard: HTMLElement;
  private readonly end = h("div", { class: "run-end" });
  private readonly charts = h("div", { class: "charts run-charts" });
  private readonly low = h("div", { class: "run-low" });
  private readonly problem = h("div");
  private readonly diagnosis: CachedAnswer<Diagnosis> | null;
  private sinksAsked = 0;
  private diagnosed = 0;
  private diagnosedState = "";
  private took = 0;
  private panels = new Map<string, Panel>();
  private axis: Axis = "step";
  private charted = "";
  private stops: (() => void)[] = [];

  constructor(
    root: HTMLElement,
    private readonly page: Page,
  ) {
    const run = runOf(page);
    this.run = run;
    this.progress = h(
      "div",
      { class: "progress" },
      this.progressText,
      h("div", { class: "bar", attrs: { "aria-hidden": "true" } }, this.bar),
    );
    this.alertCard = h(
      "section",
      { class: "card" },
      h(
        "div",
        { class: "card-head" },
        h("h2", { class: "card-title" }, "Alerts"),
        h("a", { attrs: { href: page.router.link({ view: "alerts" }) } }, "All"),
      ),
      this.alerts,
    );
    this.changeCard = card("Recent events", this.changes);
    const phases = h(
      "section",
      { class: "card phases-card" },
      h(
        "div",
        { class: "card-head" },
        h("h2", { class: "card-title" }, "Where the time of a step goes"),
        this.phaseNote,
      ),
      this.phases,
    );
    const state = h("section", { class: "card stack" }, this.progress, this.numbers);
    fill(
      root,
      this.problem,
      h(
        "div",
        { class: "run-top" },
        h("div", { class: "stack" }, this.verdict, phases, this.sinks.element),
        h("div", { class: "stack" }, state, this.alertCard, this.changeCard),
      ),
      this.end,
      this.charts,
      this.low,
    );
    this.diagnosis = page.server.capabilities.diagnosis ? new CachedAnswer(() => this.askDiagnosis()) : null;
    show(this.alertCard, page.server.capabilities.alerts);
    show(this.changeCard, false);
    show(this.bar.parentElement as HTMLElement, false);
    this.stops.push(
      run.head.listen(() => this.drawHead()),
      run.live.listen({ status: (status) => this.follow(status) }),
      run.names.listen(() => this.drawCharts()),
      run.events.listen(() => this.mark()),
    );
    if (page.server.capabilities.alerts) this.stops.push(run.alerts.listen(() => this.drawAlerts()));
    if (this.diagnosis) this.stops.push(this.diagnosis.listen(() => this.drawVerdict()));
    const timer = window.setInterval(() => this.followSinks(), SINKS_MS);
    this.stops.push(() => clearInterval(timer));
    if (run.live.status) this.drawProgress(run.live.status);
    run.attentive = true;
    run.head.refresh();
  }

  private follow(status: RunStatus): void {
    this.drawProgress(status);
    this.drawAlerts(); // what an alert's state is called depends on that of the run
  }

  private async askDiagnosis(): Promise<Diagnosis> {
    const begun = performance.now();
    this.diagnosed = begun;
    this.diagnosedState = this.run.live.status?.state ?? "";
    try {
      return await json("/api/diagnosis", { run: this.run.key });
    } finally {
      this.took = performance.now() - begun;
    }
  }

  update(place: Place): void {
    const x = place.params.get("x");
    this.axis = x === "time" || x === "wall" ? x : "step";
    this.run.link.setUnit(this.axis === "step" ? "step" : "time");
    for (const panel of this.panels.values()) panel.setOptions({ axis: this.axis });
  }

  stop(): void {
    this.run.attentive = false;
    for (const stop of this.stops) stop();
    for (const panel of this.panels.values()) panel.stop();
  }

  private drawHead(): void {
    const head = this.run.head.value;
    if (!head) {
      fill(
        this.problem,
        failure(this.run.head.error, () => this.run.head.refresh()),
      );
      return;
    }
    fill(this.problem);
    this.diagnose(head.status.state);
    this.drawVerdict();
    this.drawProgress(this.run.live.status ?? head.status);
    const numbers = head.numbers.filter((one) => !SAID.has(one.key));
    redraw(this.numbers, numbers, () =>
      numbers.map((one) =>
        h(
          "div",
          { title: head.definitions[one.key] ?? "" },
          h("dt", {}, one.label),
          h("dd", { class: "num" }, one.value === null ? one.text || ABSENT : value(one.value, one.unit)),
        ),
      ),
    );
    this.drawPhases(head);
    this.sinks.draw(head.sinks);
    redraw(this.end, head.end, () =>
      head.end
        ? endCard(head.end, (time, rank) => this.page.router.link({ view: "console", params: consoleAt(time, rank) }))
        : null,
    );
    this.drawCharts();
    redraw(this.low, [head.run, head.ranks, head.problems], () => this.facts(head));
  }

  /** Load again while the run is running, with pauses as long as the request, and once after its end. */
  private diagnose(state: string): void {
    const now = performance.now();
    if (!this.diagnosis?.value || (state !== "running" && state === this.diagnosedState)) return;
    if (state === "running" && now - this.diagnosed < Math.max(DIAGNOSE_MS, 5 * this.took)) return;
    this.diagnosed = now;
    this.diagnosedState = state;
    this.diagnosis.refresh();
  }

  /** Sinks may catch up after the run has ended, when nothing else of it changes. */
  private followSinks(): void {
    const head = this.run.head.value;
    if (!head || document.hidden || (this.run.live.status ?? head.status).state === "running") return;
    const now = performance.now();
    if (!head.sinks.some((sink) => sink.state !== "done") || now - this.sinksAsked < 10 * this.run.head.took) return;
    this.sinksAsked = now;
    this.run.head.refresh();
  }

  private drawPhases(head: RunHead): void {
    const { time } = head;
    const figures = time ? (["mean", "p50", "p95", "max"] as const).filter((key) => time.step[key] !== null) : [];
    setText(this.phaseNote, figures.map((key) => `${key} ${duration(time?.step[key])}`).join(" · "));
    redraw(this.phases, time?.phases ?? null, () =>
      time?.phases.length
        ? phaseBar(time.phases)
        : h("p", { class: "soft" }, "No steps recorded: use run.step() and run.phase(), or stepscope run."),
    );
  }

  private drawVerdict(): void {
    const head = this.run.head.value;
    if (!head) return;
    const found = this.diagnosis?.value ?? null;
    const tone = toneOfVerdict(head.status, found);
    this.verdict.className = `card verdict ${tone}`;
    const waiting = this.diagnosis !== null && !found && !this.diagnosis.error;
    redraw(this.verdict, [head.status.state, head.status.cause, found, waiting, this.diagnosis?.error], () =>
      verdict(head.status, found, waiting, (range) =>
        this.page.router.link({
          view: "training",
          params: new URLSearchParams({ zoom: zoomText("step", range) ?? "" }),
        }),
      ),
    );
    this.drawChanges(head, found);
  }

  /** Recent events and changes of metrics, the newest first. */
  private drawChanges(head: RunHead, found: Diagnosis | null): void {
    const sorted = [...head.changes, ...(found?.changes ?? [])].sort(
      (one, other) => (other.time ?? 0) - (one.time ?? 0),
    );
    const all = sorted.filter((one, place) => one.text !== sorted[place - 1]?.text).slice(0, 5);
    show(this.changeCard, all.length > 0);
    redraw(this.changes, all, () =>
      all.map((one) =>
        h(
          "li",
          {},
          one.time === null
            ? h("span")
            : h(
                "a",
                {
                  class: "soft num",
                  title: `${moment(one.time)}: show the console at this time`,
                  attrs: {
                    href: this.page.router.link({ view: "console", params: consoleAt(one.time, null) }),
                  },
                },
                this.when(one.time),
              ),
          h("span", {}, one.text),
        ),
      ),
    );
  }

  /** Return a time relative to the start of the run. */
  private when(time: number | null): string {
    const begun = this.run.head.value?.run.created;
    return time === null ? "" : begun ? `+${duration(time - begun)}` : moment(time);
  }

  private drawProgress(status: RunStatus): void {
    show(this.bar.parentElement as HTMLElement, status.progress !== null);
    this.bar.style.transform = `scaleX(${status.progress ?? 0})`;
    const total = status.total_steps ? ` of ${count(status.total_steps)}` : "";
    const parts: Child[] = [
      h(
        "span",
        {},
        h("span", { class: "soft" }, status.step === null ? "no step yet" : "step "),
        status.step === null ? null : h("b", { class: "num" }, count(status.step)),
        h("span", { class: "soft" }, total),
      ),
    ];
    if (status.epoch !== null && status.epoch !== undefined)
      parts.push(h("span", { class: "soft num" }, `epoch ${number(status.epoch, 3)}`));
    if (status.rate !== null) parts.push(h("span", { class: "soft num" }, value(status.rate, "steps/second")));
    const left =
      status.state === "running" && status.left
        ? `${duration(status.left)} left, until ${moment(this.run.live.now() + status.left)}`
        : status.progress !== null
          ? `${Math.floor(status.progress * 100)} %`
          : "";
    parts.push(h("span", { class: "soft num end" }, left));
    redraw(this.progressText, [status.step, total, status.epoch, status.rate, left], () => parts);
  }

  private drawAlerts(): void {
    const found = this.run.alerts.value?.alerts ?? [];
    const open = found.filter((one) => one.state !== "resolved");
    const shown = (open.length ? byUrgency(open) : found).slice(0, 5);
    redraw(this.alerts, [shown, this.run.live.status?.state], () =>
      shown.length ? shown.map((one) => this.alert(one)) : h("li", { class: "soft" }, "No alerts."),
    );
  }

  private alert(one: AlertRow): HTMLElement {
    const href = this.page.router.link({ view: "alerts", params: new URLSearchParams({ alert: one.alert }) });
    const running = this.run.live.status?.state === "running";
    return h(
      "li",
      {},
      severityMark(one.severity),
      h("span", {}, h("a", { attrs: { href } }, one.text || one.rule)),
      h(
        "span",
        { class: "soft num" },
        one.state === "firing" && one.since && running ? ago(this.run.live.now() - one.since) : stateWord(one, running),
      ),
    );
  }

  private drawCharts(): void {
    const metrics = this.run.names.value?.metrics;
    const head = this.run.head.value;
    if (!metrics || !head) return;
    const known = new Map(metrics.map((metric) => [metric.name, metric]));
    const names = head.important.filter((name) => known.has(name)).slice(0, MOST_CHARTS);
    if (JSON.stringify(names) === this.charted) return;
    this.charted = JSON.stringify(names);
    fill(
      this.charts,
      names.map((name) => {
        const metric = known.get(name);
        const panel =
          this.panels.get(name) ??
          new Panel(this.run, {
            title: name,
            names: [name],
            unit: metric?.unit ?? "",
            help: metric?.help ?? "",
            ...(metric ? axisOf(metric) : {}),
            enlarge: () =>
              this.page.router.go({ view: "training", params: new URLSearchParams({ wide: name, q: name }) }),
          });
        panel.setOptions({ axis: this.axis });
        this.panels.set(name, panel);
        return panel.element;
      }),
    );
    this.mark();
  }

  private mark(): void {
    const markers = markersOf(this.run.events.value?.events ?? []);
    for (const panel of this.panels.values()) panel.setMarkers(markers);
  }

  private facts(head: RunHead): Child {
    const several = head.ranks.length > 1 || head.ranks.some((rank) => rank.lost);
    return [
      several
        ? card(
            "Ranks",
            h(
              "div",
              { class: "scroll" },
              table(
                [
                  { title: "Rank", cell: (rank) => `${rank.rank}${rank.attempt ? ` · attempt ${rank.attempt}` : ""}` },
                  {
                    title: "State",
                    cell: (rank) => h("span", { title: rank.cause }, stateMark(rank.stall || rank.state)),
                  },
                  { title: "Node", cell: (rank) => rank.node },
                  { title: "Step", class: "num", cell: (rank) => count(rank.step) },
                  { title: "Rows lost", class: "num", cell: (rank) => count(rank.lost) },
                ],
                head.ranks,
              ),
            ),
          )
        : null,
      card("Run", machineFacts(head)),
      configFacts(head.run.config),
      head.problems.length
        ? card(
            "Unreadable data",
            h(
              "ul",
              { class: "list" },
              head.problems.map((text) => h("li", {}, h("span", { class: "warn" }, "!"), h("span", {}, text))),
            ),
          )
        : null,
    ];
  }
}

export const overview: View = {
  name: "overview",
  title: "Overview",
  of: "run",
  mount: (root, page) => new OverviewView(root, page),
};
