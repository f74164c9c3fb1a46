/** The frame around the views: bar, tabs, keyboard, title and icon. */

import "./style.css";
import { json, type RunStatus, reason, type ServerInfo } from "./api.ts";
import { zoomOf, zoomText } from "./chart_link.ts";
import { fill, h, must, setAttr, setText, show, visible } from "./dom.ts";
import { ago, capital, count } from "./format.ts";
import { helpDialog } from "./help.ts";
import { type Place, parse, Router } from "./router.ts";
import { RunModel } from "./run.ts";
import { choice, choose, isDark, start as startTheme } from "./theme.ts";
import type { Mounted, Page, View } from "./view.ts";
import { VIEWS } from "./views/all.ts";
import { coded, empty, failure, icon, stateMark } from "./widgets.ts";

const STALE = 5;
const REFRESH = 0.5;
const KEPT = ["x", "zoom"];
const THEME =
  "M8 1.8v1.4M8 12.8v1.4M1.8 8h1.4M12.8 8h1.4M3.6 3.6l1 1M11.4 11.4l1 1M12.4 3.6l-1 1M4.6 11.4l-1 1M8 5.2a2.8 2.8 0 1 1 0 5.6a2.8 2.8 0 0 1 0-5.6z";

class Shell implements Page {
  readonly router = new Router();
  run: RunModel | null = null;
  private view: View | null = null;
  private mounted: Mounted | null = null;
  private readonly main = h("main", { attrs: { id: "main", tabindex: -1 } });
  private readonly crumb = h("div", { class: "crumb" });
  private readonly tabs = h("nav", { class: "tabs", attrs: { "aria-label": "Views" } });
  private readonly pulse = h("span", { class: "pulse", attrs: { role: "status" } }, h("i"), h("span"));
  private readonly banner = h("div", { class: "banner", attrs: { role: "alert" } });
  private readonly toast = h("div", { class: "toast", attrs: { role: "status" } });
  private readonly help = helpDialog();
  private toastTimer = 0;
  private stops: (() => void)[] = [];
  private crumbText = "";

  constructor(
    root: HTMLElement,
    readonly server: ServerInfo,
    run: RunModel | null,
  ) {
    if (run) this.follow(run);
    const brand = h(
      "a",
      { class: "brand", attrs: { href: "#/" }, title: `All runs of ${server.root}` },
      h("img", { attrs: { src: "./icon.svg", alt: "" } }),
      h("span", {}, server.heading || "Stepscope"),
    );
    const end = h(
      "div",
      { class: "top-end" },
      this.pulse,
      h(
        "button",
        {
          class: "ghost",
          title: "Light or dark (t)",
          attrs: { type: "button", "aria-label": "Light or dark" },
          on: { click: () => this.turnTheme() },
        },
        icon(THEME),
      ),
      h(
        "button",
        {
          class: "ghost",
          title: "Keys (?)",
          attrs: { type: "button", "aria-label": "Help" },
          on: { click: () => this.help.showModal() },
        },
        icon("M5.8 6a2.2 2.2 0 1 1 3.2 2c-.7.4-1 .8-1 1.6M8 12.2v.1"),
      ),
    );
    show(this.banner, false);
    show(this.crumb, false);
    show(this.pulse, false);
    show(this.toast, false);
    fill(
      root,
      h("header", { class: "top" }, brand, this.crumb, this.tabs, end),
      this.banner,
      this.main,
      this.toast,
      this.help,
    );
    this.router.listen((place, before) => this.arrive(place, before));
    addEventListener("keydown", (event) => this.pressed(event));
    setInterval(() => this.refresh(), 1000);
    this.arrive(this.router.place, this.router.place);
  }

  announce(text: string): void {
    setText(this.toast, text);
    show(this.toast, true);
    clearTimeout(this.toastTimer);
    this.toastTimer = window.setTimeout(() => show(this.toast, false), 3500);
  }

  private arrive(place: Place, before: Place): void {
    const view =
      VIEWS.find(
        (one) => one.name === place.view && one.of === (place.run ? "run" : "runs") && !one.hidden?.(this.server),
      ) ?? null;
    const same = view !== null && view === this.view && (this.run?.key ?? "") === place.run;
    if (!same) this.leave(place);
    this.zoom(place);
    if (same) this.mounted?.update?.(place, before);
    else this.enter(view, place);
    this.drawTabs();
  }

  private leave(place: Place): void {
    this.mounted?.stop?.();
    this.mounted = null;
    if (this.run && this.run.key !== place.run) {
      for (const stop of this.stops) stop();
      this.stops = [];
      this.run.stop();
      this.run = null;
    }
  }

  private enter(view: View | null, place: Place): void {
    this.view = view;
    if (place.run && !this.run) this.open(place.run);
    const root = h("div", { class: `view view-${view?.name ?? "none"}` });
    fill(this.main, root);
    scrollTo(0, 0);
    if (!view)
      fill(root, empty("No such page", "This address does not exist.", h("a", { attrs: { href: "#/" } }, "All runs")));
    else {
      this.mounted = view.mount(root, this);
      this.mounted.update?.(place, place);
    }
    document.body.dataset.view = view?.name ?? "";
    document.body.classList.toggle("has-run", place.run !== "");
    this.refresh();
  }

  private open(key: string): void {
    this.follow(new RunModel(key, this.server.refresh || REFRESH));
    this.zoom(this.router.place);
  }

  private follow(run: RunModel): void {
    this.run = run;
    this.stops.push(
      run.live.listen({ status: () => this.refresh(), trouble: () => this.refresh() }),
      run.head.listen(() => this.refresh()),
      run.link.onRange((range) => {
        if (run.link.waits) return;
        // a zoom is an entry of the history; the same zoom in another unit is not
        const before = zoomOf(this.router.place.params);
        this.router.param({ zoom: zoomText(run.link.unit, range) }, !before || before.unit === run.link.unit);
      }),
    );
  }

  /** Apply the zoom of the address, converted to the unit of the view. */
  private zoom(place: Place): void {
    const run = this.run;
    if (!run || run.key !== place.run) return;
    const zoom = zoomOf(place.params);
    if (zoom && zoomText(run.link.unit, run.link.range) !== place.params.get("zoom")) {
      if (zoom.unit !== run.link.unit) run.link.setUnit(zoom.unit);
      run.link.setRange(zoom.range);
    } else if (!zoom) run.link.setRange(null);
  }

  private drawTabs(): void {
    const { place } = this.router;
    const carried = new URLSearchParams();
    for (const name of KEPT) if (place.run && place.params.has(name)) carried.set(name, place.params.get(name) ?? "");
    const shown = VIEWS.filter((view) => view.of === (place.run ? "run" : "runs") && !view.hidden?.(this.server));
    const { firing, worst } = this.firing();
    fill(
      this.tabs,
      shown.map((view) =>
        h(
          "a",
          {
            attrs: {
              href: this.router.link({ view: view.name, run: place.run, params: carried }),
              "aria-current": view === this.view ? "page" : false,
              "data-tab": view.name,
            },
          },
          view.title,
          view.name === "alerts" && firing ? h("span", { class: `badge ${worst}` }, firing) : null,
        ),
      ),
    );
    const current = this.tabs.querySelector<HTMLElement>("[aria-current]");
    if (current && this.tabs.scrollWidth > this.tabs.clientWidth) this.tabs.scrollLeft = current.offsetLeft - 60;
    this.badged = `${firing} ${worst}`;
  }

  /** Alerts in the badge when it was last drawn. */
  private badged = "";

  /** Return the number of firing alerts and their highest severity. */
  private firing(): { firing: number; worst: string } {
    const status = this.run?.live.status;
    return { firing: status?.firing ?? 0, worst: status?.worst ?? "info" };
  }

  /** Update bar, title and icon, every second and after every response. */
  private refresh(): void {
    const status = this.run?.live.status ?? null;
    const { firing, worst } = this.firing();
    if (`${firing} ${worst}` !== this.badged) this.drawTabs();
    this.drawCrumb(status);
    const [tone, text] = this.freshness(status);
    show(this.pulse, text !== "");
    setAttr(this.pulse, "class", `pulse ${tone}`);
    setText(must(this.pulse.lastElementChild, "pulse"), text);
    setAttr(document.body, "data-fresh", tone);
    const failed = this.run?.live.failed ?? "";
    this.drawFailure(status ? "" : failed);
    show(this.banner, failed !== "" && status !== null);
    if (failed && this.banner.dataset.text !== failed) {
      this.banner.dataset.text = failed;
      fill(
        this.banner,
        icon("M8 2.5L14 13H2zM8 6.5v3M8 11.3v.1"),
        h("span", {}, coded(capital(failed))),
        h("span", { class: "soft" }, "The page shows the last data received."),
      );
    }
    this.drawTitle(status, tone);
  }

  /** Show why there is no data, instead of empty views. */
  private drawFailure(text: string): void {
    const first = this.main.querySelector<HTMLElement>(":scope > .view");
    if (first) show(first, text === "");
    const shown = this.main.querySelector<HTMLElement>(":scope > .lost");
    if (!text) shown?.remove();
    else if (shown?.dataset.text !== text) {
      shown?.remove();
      const title = this.run?.live.absent ? "No such run" : undefined;
      this.main.append(
        h(
          "div",
          { class: "lost", attrs: { "data-text": text } },
          failure(text, undefined, title, h("a", { class: "button", attrs: { href: "#/" } }, "All runs")),
        ),
      );
    }
  }

  private drawCrumb(status: RunStatus | null): void {
    const run = this.run;
    const head = run?.head.value?.run;
    const name = head?.name || head?.id || run?.key || "";
    const text = run ? `${name}\n${status?.state ?? ""}` : "";
    if (text === this.crumbText) return;
    this.crumbText = text;
    show(this.crumb, run !== null);
    fill(
      this.crumb,
      h("span", { class: "crumb-name cut", title: head ? `${head.project} / ${head.id}` : name }, name),
      status ? stateMark(status.state, status.cause) : null,
    );
  }

  private freshness(status: RunStatus | null): [string, string] {
    const run = this.run;
    if (!run) return ["", ""];
    if (run.live.failed) return run.live.absent ? ["", ""] : ["lost", status ? "no connection" : "not connected"];
    if (!status) return ["", "connecting"];
    const quiet = status.heard === null ? null : run.live.now() - status.heard;
    // the age of the data matters only while more should come
    if (status.state !== "running")
      return ["over", quiet === null ? "" : `${status.state === "lost" ? "last heard" : "ended"} ${ago(quiet)}`];
    if (quiet !== null && quiet > STALE) return ["stale", `last data ${ago(quiet)}`];
    return ["live", "live"];
  }

  private drawTitle(status: RunStatus | null, tone: string): void {
    const heading = this.server.heading || "Stepscope";
    const head = this.run?.head.value?.run;
    const name = head?.name || head?.id || this.run?.key || "";
    let [title, picture] = [heading, "icon"];
    if (this.run) {
      const done =
        status?.progress === null || status?.progress === undefined
          ? status?.step
            ? `step ${count(status.step)}`
            : ""
          : `${Math.floor(status.progress * 100)} %`;
      const word = !status ? "" : status.state !== "running" ? status.state : tone === "stale" ? "stale" : done;
      title = `${status?.firing ? `(${status.firing}) ` : ""}${word ? `${word} · ` : ""}${name} · ${heading}`;
      const running = status?.state === "running";
      if (status?.firing && status.worst !== "info" && running) picture = "icon-alert";
      else if (tone === "stale" || tone === "lost") picture = "icon-stale";
      else if (running) picture = "icon-running";
      else if (status) picture = status.state === "finished" ? "icon-finished" : "icon-failed";
    } else if (this.view && this.view.name !== "runs") title = `${this.view.title} · ${heading}`;
    if (document.title !== visible(title)) document.title = visible(title);
    setAttr(must(document.querySelector("link[rel=icon]"), "icon"), "href", `./${picture}.svg`);
  }

  private turnTheme(): void {
    const next = choice() === "auto" ? (isDark() ? "light" : "dark") : choice() === "dark" ? "light" : "dark";
    choose(next);
    this.announce(`${next === "dark" ? "Dark" : "Light"} from now on`);
  }

  private pressed(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    const target = event.target as HTMLElement;
    const typing = target.matches("input, textarea, select, [contenteditable]");
    if (typing) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const links = [...this.tabs.querySelectorAll<HTMLAnchorElement>("a")];
    const current = links.findIndex((link) => link.hasAttribute("aria-current"));
    const act: Record<string, () => void> = {
      "/": () => {
        const search = this.main.querySelector<HTMLInputElement>("input[type=search]");
        search?.focus();
        search?.select();
      },
      "?": () => this.help.showModal(),
      t: () => this.turnTheme(),
      "[": () => links[Math.max(0, current - 1)]?.click(),
      "]": () => links[Math.min(links.length - 1, current + 1)]?.click(),
      u: () => this.router.go({ view: "runs", run: "", params: new URLSearchParams() }),
      "0": () => this.run?.link.setRange(null),
    };
    const found =
      act[event.key] ??
      (/^[1-9]$/.test(event.key) && links[Number(event.key) - 1]
        ? () => links[Number(event.key) - 1]?.click()
        : undefined);
    if (!found) return;
    event.preventDefault();
    found();
  }
}

async function start(): Promise<void> {
  startTheme();
  const root = must(document.getElementById("page"), "root");
  const { run: key } = parse(location.hash);
  // the requests of the run do not wait for /api/server
  const run = key ? new RunModel(key, REFRESH) : null;
  try {
    new Shell(root, await json("/api/server"), run);
  } catch (error) {
    run?.stop();
    fill(
      root,
      failure(reason(error), () => void start()),
    );
  }
}

void start();
