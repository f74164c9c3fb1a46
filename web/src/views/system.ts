/** The machine of a run: current values of the GPUs, and machine metrics over time next to the training's charts. */

import "./system.css";
import { json, type MetricRow, type RunMachine, reason } from "../api.ts";
import type { Frame } from "../binary.ts";
import type { CurveBuffer } from "../curve_buffer.ts";
import { fill, h } from "../dom.ts";
import type { CurveId } from "../live.ts";
import { Panel } from "../panel.ts";
import type { Place } from "../router.ts";
import type { RunModel } from "../run.ts";
import type { Mounted, Page, View } from "../view.ts";
import { empty, failure, segmented, skeleton, toggle } from "../widgets.ts";
import { GpuGrid } from "./gpu_grid.ts";
import { Heatmap } from "./heatmap.ts";
import { labels } from "./line_labels.ts";
import { ProcessTable } from "./process_table.ts";
import { legend } from "./swatch.ts";

const CORE = /^cpu\/\d+\/usage_ratio$/;
const MANY = 8;
const AGAIN_MS = 5000;

class SystemView implements Mounted {
  private readonly tools = h("div", { class: "toolbar" });
  private readonly now = h("div", { class: "system-now" });
  private readonly charts = h("div", { class: "charts" });
  private readonly more = h("div", { class: "charts" });
  private readonly rest = h("div", { class: "system-rest" });
  private panels: Panel[] = [];
  private trainingPanels: Panel[] = [];
  private main: HTMLElement[] = [];
  private single: HTMLElement[] = [];
  private heat: Heatmap | null = null;
  private grid: GpuGrid | null = null;
  private processes: ProcessTable | null = null;
  private machine: RunMachine | null = null;
  private asked = 0;
  private stopped = false;
  private readonly stops: (() => void)[] = [];

  constructor(
    root: HTMLElement,
    private readonly page: Page,
    private readonly run: RunModel,
  ) {
    fill(root, this.tools, this.now, this.charts, this.rest);
    fill(this.now, skeleton(2));
    this.drawTools();
    void this.load();
    this.stops.push(
      run.live.listen({ frame: (frame, curves) => this.grown(frame, curves), reset: () => void this.load() }),
    );
    this.stops.push(run.names.listen(() => this.named()));
  }

  update(place: Place, before: Place): void {
    if (place.params.get("x") !== before.params.get("x") || place.params.get("alone") !== before.params.get("alone")) {
      this.drawTools();
      this.applyAxis();
      this.drawTraining();
      this.place();
    }
  }

  stop(): void {
    this.stopped = true;
    for (const stop of this.stops) stop();
    for (const panel of [...this.panels, ...this.trainingPanels]) panel.stop();
    this.heat?.stop();
  }

  /** Return the axis: time since the start by default, else clock time or steps. */
  private axis(): "step" | "time" | "wall" {
    const word = this.page.router.place.params.get("x");
    return word === "wall" || word === "step" ? word : "time";
  }

  private drawTools(): void {
    fill(
      this.tools,
      segmented(
        "Axis",
        [
          ["time", "Time"],
          ["wall", "Clock"],
          ["step", "Step"],
        ],
        this.axis(),
        (word) => this.page.router.param({ x: word }),
      ).element,
      toggle("Training charts", this.page.router.place.params.get("alone") !== "1", (on) =>
        this.page.router.param({ alone: on ? null : "1" }),
      ).element,
      h("span", { class: "soft system-hint" }, "Hover to read all charts; drag to zoom all."),
    );
  }

  private applyAxis(): void {
    for (const panel of [...this.panels, ...this.trainingPanels]) panel.setOptions({ axis: this.axis() });
    this.heat?.setAxis(this.axis());
  }

  private async load(): Promise<void> {
    this.asked = performance.now();
    try {
      const machine = await json("/api/machine", { run: this.run.key });
      if (this.stopped) return;
      const same = this.machine && JSON.stringify(this.machine.groups) === JSON.stringify(machine.groups);
      this.machine = machine;
      this.drawNow(machine);
      if (!same) this.drawCharts(machine);
    } catch (error) {
      if (!this.stopped && !this.machine)
        fill(
          this.now,
          failure(reason(error), () => void this.load()),
        );
    }
  }

  private drawNow(machine: RunMachine): void {
    if (!machine.groups.length && !machine.gpus.length) {
      fill(
        this.now,
        empty("No machine metrics yet", "The watcher samples the machine once a second while the run is recorded."),
      );
      return;
    }
    this.grid ??= new GpuGrid();
    this.processes ??= new ProcessTable();
    this.grid.draw(machine.gpus);
    this.processes.draw(machine.processes);
    if (!this.grid.element.isConnected) fill(this.now, this.grid.element);
    this.grid.element.style.setProperty("max-width", `${machine.gpus.length * 420}px`);
  }

  /** The names of the run's metrics have come, before or after its machine, or there are more of them. */
  private named(): void {
    if (!this.machine) return;
    if (!this.machine.groups.length) void this.load();
    const drawn = this.trainingPanels.map((panel) => panel.element.dataset.chart);
    if (this.trainingMetrics().some((metric, at) => metric.name !== drawn[at])) {
      this.drawTraining();
      this.place();
    }
  }

  /** Return the metrics of the training that are shown beside those of the machine. */
  private trainingMetrics(): MetricRow[] {
    if (this.page.router.place.params.get("alone") === "1") return [];
    const metrics = this.run.names.value?.metrics ?? [];
    return [
      metrics.find((metric) => /loss/.test(metric.name)),
      metrics.find((metric) => metric.name === "step_seconds"),
    ].filter((metric) => metric !== undefined);
  }

  private drawTraining(): void {
    for (const panel of this.trainingPanels) panel.stop();
    this.trainingPanels = this.trainingMetrics().map((metric) => {
      const panel = new Panel(this.run, {
        title: metric.name,
        names: [metric.name],
        unit: metric.unit,
        help: metric.help,
        height: 200,
      });
      panel.setOptions({ axis: this.axis() });
      return panel;
    });
  }

  /** Put the training's charts first, then the machine's; charts of single metrics are folded away. */
  private place(): void {
    fill(
      this.charts,
      this.trainingPanels.map((panel) => panel.element),
      this.main,
    );
    const single = this.single.length
      ? h("details", { class: "system-more" }, h("summary", {}, `More metrics (${this.single.length})`), this.more)
      : null;
    fill(this.more, this.single);
    fill(this.rest, single, this.processes?.element ?? null, this.machine ? this.absent(this.machine) : null);
  }

  private drawCharts(machine: RunMachine): void {
    for (const panel of this.panels) panel.stop();
    this.heat?.stop();
    this.heat = null;
    this.panels = [];
    [this.main, this.single] = [[], []];
    for (const group of machine.groups) {
      const alone = group.names.length === 1 && group.title === group.names[0];
      if (group.names.length > MANY && group.names.every((name) => CORE.test(name))) {
        this.heat = new Heatmap(this.run, group.title, group.names);
        this.main.push(this.heat.element);
      } else {
        const panel = this.panel(group);
        this.panels.push(panel);
        (alone ? this.single : this.main).push(panel.element);
      }
    }
    this.drawTraining();
    this.applyAxis();
    this.place();
  }

  private panel(group: RunMachine["groups"][number]): Panel {
    const names = group.limit && !group.names.includes(group.limit) ? [...group.names, group.limit] : group.names;
    const called = labels(group.names);
    const label = (held: CurveBuffer): string =>
      held.name === group.limit ? "limit" : (called.get(held.name) ?? held.name);
    const order = (held: CurveBuffer): number => names.indexOf(held.name);
    const some = names.length > 1 && names.length <= MANY + 1;
    const shown = names.map((name) =>
      (name === group.limit ? "limit" : (called.get(name) ?? name)).replace(/^GPU /, ""),
    );
    return new Panel(this.run, {
      title: group.title,
      names,
      unit: group.unit,
      label,
      order,
      zero: true,
      height: 200,
      ...(group.unit === "ratio" ? { most: 1 } : {}),
      ...(some ? { extra: [legend(shown)] } : {}),
    });
  }

  private absent(machine: RunMachine): HTMLElement | null {
    const reasons = new Map<string, string>();
    for (const node of machine.nodes) for (const [what, why] of Object.entries(node.absent)) reasons.set(what, why);
    if (!reasons.size) return null;
    return h(
      "details",
      { class: "card system-absent" },
      h("summary", {}, `Unavailable on this machine (${reasons.size})`),
      h(
        "dl",
        { class: "facts" },
        [...reasons].map(([what, why]) => [h("dt", {}, what), h("dd", {}, why)]),
      ),
    );
  }

  /** Update the tiles from live rows; if several nodes have a GPU 0, from periodic requests. */
  private grown(frame: Frame, curves: ReadonlyMap<number, CurveId>): void {
    const fresh = new Map<string, number>();
    for (let place = 0; place < frame.header.n; place += 1) {
      const id = curves.get(frame.curve[place] ?? -1);
      if (id && id.rank < 0) fresh.set(id.name, frame.columns.last[place] ?? NaN);
    }
    if (!fresh.size) return;
    const known = this.machine && this.machine.groups.length > 0;
    if (!known || (this.machine?.nodes.length ?? 0) > 1) {
      if (performance.now() - this.asked > AGAIN_MS) void this.load();
      return;
    }
    this.grid?.follow(fresh);
    this.processes?.follow(fresh);
  }
}

export const system: View = {
  name: "system",
  title: "System",
  of: "run",
  mount(root: HTMLElement, page: Page): Mounted {
    return page.run ? new SystemView(root, page, page.run) : {};
  },
};
