/** The charts of a report: one file without a server, which contains its compressed data. */

import "./style.css";

import { curvesOf, decode, type Message } from "./binary.ts";
import { ChartLink, type Unit } from "./chart_link.ts";
import type { CurveBuffer } from "./curve_buffer.ts";
import { Curves } from "./curves.ts";
import { h } from "./dom.ts";
import { type ChartOptions, type Marker, Panel } from "./panel.ts";
import { start } from "./theme.ts";
import { segmented, toggle } from "./widgets.ts";

interface Slot {
  title: string;
  unit: string;
  names: string[];
  axis: "step" | "time";
}

interface Embedded {
  runs: string[];
  labels: string[];
  origin: number | null;
  markers: Marker[];
}

/** Return the text of a data element. */
function held(id: string): string {
  const found = document.getElementById(id);
  return (found instanceof HTMLTemplateElement ? found.content.textContent : found?.textContent) ?? "";
}

async function unpacked(text: string): Promise<Message[]> {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return decode(await new Response(stream).arrayBuffer());
}

/** Make a source of curves from the data in the file. */
function source(facts: Embedded, messages: Message[]): { curves: Curves; link: ChartLink } {
  const answer = (): Promise<Message[]> => Promise.resolve(messages);
  const curves = new Curves(facts.runs, null, 64, answer);
  curves.origin = facts.origin;
  const link = new ChartLink();
  link.convert = (x: number, from: Unit) => {
    const clock = curves.clock();
    return (from === "step" ? clock?.timeAt(x) : clock?.stepAt(x)) ?? null;
  };
  curves.follow(link);
  return { curves, link };
}

function panelOf(slot: Slot, facts: Embedded, from: { curves: Curves; link: ChartLink }): Panel {
  const many = facts.runs.length > 1;
  const place = (one: CurveBuffer): number => Math.max(0, facts.runs.indexOf(one.run));
  const spec = {
    title: slot.title,
    names: slot.names,
    unit: slot.unit,
    height: 190,
    markers: many ? [] : facts.markers,
    ...(many
      ? { every: "named" as const, label: (one: CurveBuffer) => facts.labels[place(one)] ?? one.run, order: place }
      : {}),
  };
  return new Panel(from, spec);
}

async function main(): Promise<void> {
  const facts = JSON.parse(held("report-facts")) as Embedded;
  const messages = await unpacked(held("report-series"));
  if (!messages.flatMap(curvesOf).length) return;
  start();
  const training = source(facts, messages);
  const machine = source(facts, messages);
  const panels: Panel[] = [];
  for (const figure of document.querySelectorAll<HTMLElement>("figure.slot")) {
    const slot = JSON.parse(figure.dataset.slot ?? "{}") as Slot;
    const panel = panelOf(slot, facts, slot.axis === "step" ? training : machine);
    // a diverged run must not flatten the others
    panel.setOptions({ axis: slot.axis, clip: facts.runs.length > 1 && slot.axis === "step" });
    if (slot.axis === "step") panels.push(panel);
    figure.append(panel.element);
    figure.classList.add("live");
  }
  controls(panels, facts.runs.length > 1);
}

const SMOOTH = 15;

/** Add the controls of the page: axis, log scale, smoothing, outliers. */
function controls(panels: Panel[], clipped: boolean): void {
  const setOptions = (change: Partial<ChartOptions>): void => {
    for (const panel of panels) panel.setOptions(change);
  };
  const axis = segmented(
    "axis",
    [
      ["step", "step"],
      ["time", "time"],
    ],
    "step",
    (word) => {
      axis.set(word);
      setOptions({ axis: word === "time" ? "time" : "step" });
    },
  );
  const log = toggle("log", false, (on) => {
    log.set(String(on));
    setOptions({ log: on });
  });
  const smooth = toggle("smooth", false, (on) => {
    smooth.set(String(on));
    setOptions({ smooth: on ? SMOOTH : 0 });
  });
  const clip = toggle("clip outliers", clipped, (on) => {
    clip.set(String(on));
    setOptions({ clip: on });
  });
  document
    .getElementById("report-controls")
    ?.append(
      axis.element,
      log.element,
      smooth.element,
      clip.element,
      h("span", { class: "soft" }, "drag to zoom, double click for everything"),
    );
}

void main();
