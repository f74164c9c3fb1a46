/** What the ranks of a run printed: searched, filtered and followed. */

import "./console.css";
import { type PrintedLine, reason } from "../api.ts";
import { type Child, fill, h, setText, show } from "../dom.ts";
import { capital, count, moment } from "../format.ts";
import type { Place } from "../router.ts";
import type { RunModel } from "../run.ts";
import { type Mounted, type Page, runOf, type View } from "../view.ts";
import { coded, empty, failure, field, segmented, skeleton, toggle } from "../widgets.ts";
import { pieces, uncoloured } from "./ansi.ts";
import { ConsoleWindow, parseRanks } from "./console_window.ts";
import { VirtualList } from "./virtual_list.ts";

const [ROW, POLL_MS, TYPING_MS, CHUNK] = [20, 1000, 250, 1500];
const HINT =
  "`stepscope run SCRIPT` keeps what each rank prints. With `stepscope.init` alone, set `recorder.console: on`; then `stepscope logs RUN` and this view show it.";

/** Return the time of day with milliseconds, by the clock of this computer. */
function clock(time: number): string {
  const date = new Date(time * 1000);
  const pad = (part: number, digits = 2): string => String(part).padStart(digits, "0");
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

class ConsoleView implements Mounted {
  private readonly run: RunModel;
  private window: ConsoleWindow | null = null;
  private asked = "";
  private chosen = -1;
  private wanted: RegExp | null = null;
  private timer = 0;
  private typing = 0;
  private readonly search = h("input", {
    attrs: { type: "search", placeholder: "Search, or /a.*pattern/", "aria-label": "Search the consoles" },
    on: { input: () => this.typed({ q: this.search.value }) },
  });
  private readonly ranks = h("input", {
    class: "console-ranks",
    attrs: { type: "text", placeholder: "all", "aria-label": "Ranks", inputmode: "numeric" },
    title: "Ranks, as in 0, 8-15",
    on: { input: () => this.typed({ ranks: this.ranks.value, at: null }) },
  });
  private readonly step = h("input", {
    class: "console-step",
    attrs: { type: "text", "aria-label": "Go to step", inputmode: "numeric", placeholder: "go to" },
    on: { change: () => this.page.router.param({ step: this.step.value, at: null }) },
  });
  private readonly level = segmented(
    "Lines",
    [
      ["", "All"],
      ["err", "stderr"],
      ["error", "Errors"],
    ],
    "",
    (level) => this.page.router.param({ level }),
  );
  private readonly follow = toggle(
    "Follow",
    true,
    (on) => this.page.router.param({ follow: on ? null : "0", at: null, step: null }),
    "Stay at the newest line",
  );
  private readonly note = h("p", { class: "soft console-note", attrs: { role: "status" } });
  private readonly list = new VirtualList(
    ROW,
    "Console",
    (place) => this.row(place),
    () => this.scrolled(),
  );
  private readonly detail = h("section", { class: "card console-detail", attrs: { "aria-label": "Chosen line" } });
  private readonly body = h("div", { class: "console-body" });
  private readonly head = h(
    "div",
    { class: "console-head num", attrs: { "aria-hidden": "true" } },
    h("span", { class: "line-time" }, "time"),
    h("span", { class: "line-rank" }, "rank"),
    h("span", { class: "line-step" }, "step"),
    h("span", {}, "line"),
  );

  constructor(
    root: HTMLElement,
    private readonly page: Page,
  ) {
    this.run = runOf(page);
    this.list.element.addEventListener("keydown", (event) => this.pressed(event));
    fill(
      root,
      h(
        "div",
        { class: "toolbar" },
        h("div", { class: "search" }, this.search),
        this.level.element,
        field("Ranks", this.ranks),
        field("Step", this.step),
        this.follow.element,
      ),
      this.note,
      this.body,
      this.detail,
    );
    show(this.detail, false);
    this.timer = window.setInterval(() => void this.poll(), POLL_MS);
  }

  update(place: Place): void {
    const { params } = place;
    const text = (name: string): string => params.get(name) ?? "";
    if (document.activeElement !== this.search) this.search.value = text("q");
    if (document.activeElement !== this.ranks) this.ranks.value = text("ranks");
    this.step.value = text("step");
    this.level.set(text("level"));
    this.follow.set(this.following() ? "1" : "");
    const asked = JSON.stringify(["q", "ranks", "level", "at", "step"].map(text));
    if (asked === this.asked) {
      if (this.following()) this.list.toEnd();
      return;
    }
    this.asked = asked;
    void this.load();
  }

  stop(): void {
    clearInterval(this.timer);
    clearTimeout(this.typing);
    this.window?.stop();
  }

  private following(): boolean {
    const { params } = this.page.router.place;
    return params.get("follow") !== "0" && !params.get("at") && !params.get("step");
  }

  private typed(change: Record<string, string | null>): void {
    clearTimeout(this.typing);
    this.typing = window.setTimeout(() => this.page.router.param(change), TYPING_MS);
  }

  /** Return the time to go to: that of the address, or of its step. */
  private async target(lines: ConsoleWindow): Promise<number | null> {
    const { params } = this.page.router.place;
    const [at, step] = [Number(params.get("at") || Number.NaN), Number(params.get("step") || Number.NaN)];
    if (Number.isFinite(at)) return at;
    if (!Number.isInteger(step)) return null;
    const found = await lines.timeOf(step);
    if (found === null) this.page.announce(`The time of step ${step} is unknown.`);
    return found;
  }

  private async load(): Promise<void> {
    const { params } = this.page.router.place;
    this.window?.stop();
    const filter = {
      ranks: parseRanks(params.get("ranks") ?? ""),
      level: params.get("level") ?? "",
      pattern: params.get("q") ?? "",
    };
    this.wanted = searched(filter.pattern);
    const lines = new ConsoleWindow(this.run.key, filter);
    this.window = lines;
    this.chosen = -1;
    show(this.detail, false);
    if (!this.list.element.isConnected) fill(this.body, skeleton(8));
    let at: number | null = null;
    try {
      at = await this.target(lines);
      await lines.start(at);
    } catch (error) {
      if (this.window === lines && !(error instanceof DOMException)) {
        fill(
          this.body,
          failure(reason(error), () => void this.load()),
        );
        setText(this.note, "");
      }
      return;
    }
    if (this.window !== lines) return;
    this.arrange();
    if (at !== null && lines.lines.length) this.choose(lines.near(at), true);
    else this.list.toEnd();
  }

  private arrange(before = 0): void {
    const found = this.window;
    if (!found) return;
    if (!found.lines.length) {
      const isMissing = found.facts?.exists === false;
      fill(
        this.body,
        isMissing
          ? h("div", { class: "nothing" }, h("h2", {}, "No console was kept"), h("p", { class: "soft" }, coded(HINT)))
          : empty("No such line", "Try another search, level or rank."),
      );
    } else if (!this.list.element.isConnected) fill(this.body, this.head, this.list.element);
    this.list.resize(found.lines.length, before);
    this.say();
  }

  private say(): void {
    const { window: found } = this;
    const facts = found?.facts;
    if (!found || !facts) return;
    const which = found.whole ? "" : found.complete ? "the newest " : "";
    const parts = [
      capital(`${which}${count(found.lines.length)} ${found.lines.length === 1 ? "line" : "lines"}`),
      facts.ranks.length > 1 ? `of ${chosenRanks(found.ranks, facts.ranks.length)}` : "",
      found.whole ? "" : "· scroll up for older ones",
      facts.dropped ? `· ${count(facts.dropped)} lines were printed but not kept` : "",
      ...facts.problems.slice(0, 2).map((problem) => `· ${problem}`),
    ];
    setText(this.note, facts.exists ? parts.filter(Boolean).join(" ") : "");
  }

  private async poll(): Promise<void> {
    const { window: found } = this;
    if (!found || document.hidden || this.run.live.status?.state !== "running") return;
    if (!this.following()) return;
    await this.grow(found);
  }

  private async grow(found: ConsoleWindow): Promise<void> {
    const atEnd = this.list.atEnd;
    try {
      if (!(await found.newer()) || this.window !== found) return;
    } catch (error) {
      if (!(error instanceof DOMException)) setText(this.note, reason(error));
      return;
    }
    this.arrange();
    if (this.following() && atEnd) this.list.toEnd();
  }

  private scrolled(): void {
    const { window: found } = this;
    if (!found) return;
    if (this.list.atStart) {
      void found.older().then((added) => {
        if (added && this.window === found) {
          if (this.chosen >= 0) this.chosen += added;
          this.arrange(added);
        }
      });
    } else if (this.list.atEnd && !found.complete) void this.grow(found);
  }

  private row(place: number): HTMLElement {
    const line = this.window?.lines[place];
    if (!line) return h("div");
    const isRepeat = this.window?.lines[place - 1]?.rank === line.rank;
    return h(
      "div",
      {
        class: `line ${line.stream === "err" ? "err" : ""} ${line.is_error ? "error" : ""} ${place === this.chosen ? "chosen" : ""}`,
        on: { click: () => this.choose(place) },
      },
      h("span", { class: "line-time num" }, clock(line.time)),
      h("span", { class: `line-rank num ${isRepeat ? "again" : ""}` }, line.rank),
      h("span", { class: "line-step num" }, line.step === null ? "" : line.step),
      h("span", { class: "line-text" }, coloured(line.text, this.wanted)),
    );
  }

  private choose(place: number, middle = false): void {
    const line = this.window?.lines[place];
    if (!line) return;
    this.chosen = place;
    const { params } = this.page.router.place;
    const around = new URLSearchParams({ at: String(line.time) });
    if (params.get("ranks")) around.set("ranks", params.get("ranks") ?? "");
    const only = new URLSearchParams({ at: String(line.time), ranks: String(line.rank) });
    fill(
      this.detail,
      h(
        "header",
        {},
        h("p", { class: "soft num" }, about(line)),
        h("button", { class: "button", attrs: { type: "button" }, on: { click: () => this.closeDetail() } }, "Close"),
      ),
      h("pre", { class: "console-full" }, chunks(uncoloured(line.text))),
      h(
        "p",
        { class: "console-links" },
        h("a", { attrs: { href: this.page.router.link({ params: around }) } }, "Lines around it"),
        h("a", { attrs: { href: this.page.router.link({ params: only }) } }, `Only rank ${line.rank}`),
      ),
    );
    show(this.detail, true);
    this.list.reveal(place, middle); // the list has become lower
  }

  private closeDetail(): void {
    this.chosen = -1;
    show(this.detail, false);
    this.list.draw(true);
    this.list.element.focus();
  }

  private pressed(event: KeyboardEvent): void {
    if (event.key === "Escape" && this.chosen >= 0) {
      event.stopPropagation();
      this.closeDetail();
      return;
    }
    const last = (this.window?.lines.length ?? 0) - 1;
    const now = this.chosen < 0 ? last : this.chosen;
    const places: Record<string, number> = {
      ArrowUp: now - 1,
      ArrowDown: now + 1,
      PageUp: now - this.list.page,
      PageDown: now + this.list.page,
      Home: 0,
      End: last,
    };
    const place = places[event.key];
    if (place === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.choose(Math.max(0, Math.min(last, place)));
  }
}

/** Return where a line is from. */
function about(line: PrintedLine): string {
  const parts = [
    `rank ${line.rank} on ${line.node}`,
    moment(line.time),
    line.step === null ? "" : `step ${count(line.step)}`,
    line.attempt ? `attempt ${line.attempt}` : "",
    `line ${count(line.number + 1)}`,
    line.stream ? `std${line.stream}` : "",
    line.is_cut ? "only its start was kept" : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Return the pieces of a line with their colours, and what was searched for marked. */
function coloured(text: string, wanted: RegExp | null): HTMLElement[] {
  const shown = pieces(text.slice(0, CHUNK));
  const hits = wanted
    ? [
        ...shown
          .map((piece) => piece.text)
          .join("")
          .matchAll(wanted),
      ]
    : [];
  let at = 0;
  return shown.map((piece) => {
    const from = at;
    at += piece.text.length;
    return h("span", { class: piece.style || undefined }, marked(piece.text, from, hits));
  });
}

/** Return a piece with the parts marked that lie in a hit; `from` is its place in the line, as that of the hits. */
function marked(text: string, from: number, hits: RegExpMatchArray[]): Child[] {
  const found: Child[] = [];
  let at = 0;
  for (const hit of hits) {
    const begins = Math.max(at, (hit.index ?? 0) - from);
    const ends = Math.min(text.length, (hit.index ?? 0) + hit[0].length - from);
    if (ends <= begins) continue;
    found.push(text.slice(at, begins), h("mark", {}, text.slice(begins, ends)));
    at = ends;
  }
  return [...found, text.slice(at)];
}

/** Return what a search looks for; null for nothing, or for a pattern that only the server understands. */
function searched(pattern: string): RegExp | null {
  const inner = /^\/(.+)\/$/.exec(pattern)?.[1];
  try {
    return pattern ? new RegExp(inner ?? pattern.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi") : null;
  } catch {
    return null;
  }
}

/** Return a long text in pieces, as a text node is limited. */
function chunks(text: string): string[] {
  return Array.from({ length: Math.ceil(text.length / CHUNK) }, (_, place) =>
    text.slice(place * CHUNK, (place + 1) * CHUNK),
  );
}

export const console: View = {
  name: "console",
  title: "Console",
  of: "run",
  mount(root: HTMLElement, page: Page): Mounted {
    return new ConsoleView(root, page);
  },
};

/** Return whose lines are shown, in words: of the ranks that were asked for, or of all. */
function chosenRanks(asked: readonly number[], all: number): string {
  if (asked.length === 1) return `rank ${asked[0]}`;
  return `${count(asked.length || all)} ranks`;
}
