/** One tile per GPU: utilization, memory, temperature, power and throttling. */

import type { RunMachine } from "../api.ts";
import { fill, h, setAttr, setText, show } from "../dom.ts";
import { ABSENT, bytes, share, value } from "../format.ts";
import { throttled } from "./throttling.ts";

type Metrics = Record<string, number | null>;

const HOT = 85;
const IDLE = 0.3;

class Tile {
  readonly element: HTMLElement;
  readonly metrics: Metrics = {};
  private readonly use = h("strong", { class: "gpu-use num" });
  private readonly useBar = h("i", {});
  private readonly memory = h("span", { class: "num" });
  private readonly memoryBar = h("i", {});
  private readonly heat = h("span", { class: "num" });
  private readonly power = h("span", { class: "num" });
  private readonly clock = h("span", { class: "num" });
  private readonly warning = h("span", { class: "chip gpu-warning" });

  constructor(
    readonly index: string,
    name: string,
    node: string,
  ) {
    const line = (label: string, ...parts: Node[]): HTMLElement =>
      h("div", { class: "gpu-line" }, h("span", { class: "soft" }, label), parts);
    this.element = h(
      "article",
      { class: "card gpu", attrs: { "data-gpu": index } },
      h(
        "header",
        {},
        h("h3", {}, `GPU ${index}`),
        h("span", { class: "soft gpu-name", title: `${name} ${node}` }, name),
        this.warning,
      ),
      h("div", { class: "gpu-busy" }, this.use, h("span", { class: "soft" }, "busy")),
      h("div", { class: "gpu-bar" }, this.useBar),
      line("memory", this.memory),
      h("div", { class: "gpu-bar thin" }, this.memoryBar),
      h(
        "div",
        { class: "gpu-row" },
        line("temperature", this.heat),
        line("power", this.power),
        line("clock", this.clock),
      ),
    );
  }

  draw(): void {
    const { metrics } = this;
    const use = metrics.utilization_ratio ?? null;
    const [used, total] = [metrics.memory_used_bytes ?? null, metrics.memory_total_bytes ?? null];
    const heat = metrics.temperature_celsius ?? null;
    const limit = metrics.power_limit_watts ?? null;
    setText(this.use, use === null ? ABSENT : share(use));
    width(this.useBar, use, use !== null && use < IDLE ? "idle" : "");
    setText(this.memory, used === null ? ABSENT : total === null ? bytes(used) : `${bytes(used)} of ${bytes(total)}`);
    width(
      this.memoryBar,
      used !== null && total ? used / total : null,
      used !== null && total && used / total > 0.95 ? "full" : "",
    );
    setText(this.heat, heat === null ? ABSENT : value(Math.round(heat), "celsius"));
    setAttr(this.heat, "class", heat !== null && heat >= HOT ? "num hot" : "num");
    const watts = metrics.power_watts ?? null;
    setText(
      this.power,
      watts === null ? ABSENT : `${Math.round(watts)}${limit === null ? "" : ` / ${Math.round(limit)}`}\u202fW`,
    );
    setText(this.clock, value(metrics.sm_clock_hertz, "hertz"));
    const why = throttled(metrics);
    setText(this.warning, why);
    show(this.warning, why !== "");
  }
}

function width(bar: HTMLElement, share: number | null, kind: string): void {
  bar.style.setProperty("width", `${Math.max(0, Math.min(1, share ?? 0)) * 100}%`);
  setAttr(bar, "class", kind);
}

/** All tiles; they are created once, then only their numbers change. */
export class GpuGrid {
  readonly element = h("div", { class: "gpu-grid" });
  private tiles = new Map<string, Tile>();
  private shown = "";

  draw(gpus: RunMachine["gpus"]): void {
    const key = JSON.stringify(gpus.map((gpu) => [gpu.node, gpu.index, gpu.name]));
    if (key !== this.shown) {
      this.shown = key;
      this.tiles = new Map(
        gpus.map((gpu) => [`${gpu.node}|${gpu.index}`, new Tile(String(gpu.index), gpu.name, gpu.node)]),
      );
      fill(
        this.element,
        [...this.tiles.values()].map((tile) => tile.element),
      );
    }
    for (const gpu of gpus) {
      const tile = this.tiles.get(`${gpu.node}|${gpu.index}`);
      if (!tile) continue;
      Object.assign(tile.metrics, gpu.metrics);
      tile.draw();
    }
  }

  /** Update the tiles from the newest values by metric name. */
  follow(fresh: ReadonlyMap<string, number>): void {
    for (const tile of this.tiles.values()) {
      const start = `gpu/${tile.index}/`;
      let changed = false;
      for (const [name, amount] of fresh) {
        if (!name.startsWith(start)) continue;
        tile.metrics[name.slice(start.length)] = amount;
        changed = true;
      }
      if (changed) tile.draw();
    }
  }
}
