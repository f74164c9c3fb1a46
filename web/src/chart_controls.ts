/** Switches for the charts of a view: axis, smoothing, log axis, outliers. The address holds their state. */

import type { Axis } from "./chart.ts";
import { h, setText } from "./dom.ts";
import { count } from "./format.ts";
import type { ChartOptions } from "./panel.ts";
import type { Router } from "./router.ts";
import { segmented, toggle } from "./widgets.ts";

/** Points to smooth over, by position of the slider. */
const SMOOTH = [0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000];

/** Read the options of charts from an address; `clip` is the default of that option. */
export function optionsOf(params: URLSearchParams, clip = false): ChartOptions {
  const x = params.get("x");
  const axis: Axis = x === "time" || x === "wall" ? x : "step";
  const clipped = params.has("clip") ? params.get("clip") === "1" : clip;
  return {
    axis,
    log: params.getAll("log").includes("*"),
    smooth: Number(params.get("smooth")) || 0,
    clip: clipped,
    ranks: params.get("ranks") === "each" ? "each" : "band",
  };
}

/** The switches of one view. */
export class ChartControls {
  readonly elements: HTMLElement[];
  private readonly axis;
  private readonly log;
  private readonly clip;
  private readonly slider: HTMLInputElement;
  private readonly sliderText = h("span", { class: "num soft smooth-read" });

  /** `clip` is the default of that option; `turned` are further parameters that a change of the axis removes. */
  constructor(
    router: Router,
    private readonly usual: { clip: boolean } = { clip: false },
    turned: Record<string, null> = {},
  ) {
    this.axis = segmented(
      "Axis",
      [
        ["step", "Step"],
        ["time", "Time"],
        ["wall", "Clock"],
      ],
      "step",
      (x) => router.param({ x: x === "step" ? null : x, ...turned }),
    );
    this.log = toggle("Log", false, (on) => router.param({ log: on ? "*" : null }), "Logarithmic axis for all charts");
    this.clip = toggle(
      "Clip outliers",
      usual.clip,
      (on) => router.param({ clip: on === usual.clip ? null : on ? "1" : "0" }),
      "Clip values far from almost all others; each chart shows how many it clips",
    );
    this.slider = h("input", {
      attrs: { type: "range", min: 0, max: SMOOTH.length - 1, step: 1, "aria-label": "Smoothing" },
      on: { input: () => router.param({ smooth: SMOOTH[Number(this.slider.value)] || null }) },
    });
    this.elements = [
      this.axis.element,
      h(
        "label",
        { class: "field", title: "Exponential mean over so many recorded points; the raw line stays" },
        h("span", { class: "soft" }, "Smooth"),
        this.slider,
        this.sliderText,
      ),
      this.log.element,
      this.clip.element,
    ];
  }

  /** Show the options of an address, and return them. */
  set(params: URLSearchParams): ChartOptions {
    const options = optionsOf(params, this.usual.clip);
    this.axis.set(options.axis);
    this.log.set(options.log ? "1" : "");
    this.clip.set(options.clip ? "1" : "");
    this.slider.value = String(Math.max(0, SMOOTH.indexOf(options.smooth)));
    setText(this.sliderText, options.smooth ? count(options.smooth) : "off");
    return options;
  }
}
